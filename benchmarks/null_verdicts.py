"""Simulate how often verdicts are wrong: false verdicts between equal methods, and wrong exclusions.

The answers of each run are drawn from a model of seeds, problems and sampling, and are analyzed by the
functions of `atrium compare`. If all arms have the same distribution, every verdict that names a difference
is false; a study with several false verdicts counts as one error. If a candidate differs by 5 or 20 points, a
verdict that excludes differences of this size is wrong; the table shows the larger of the two rates. If no
run of a study diverged, its verdict is about runs that do not diverge, and is compared with the true
difference of such runs. `--over-all-runs` compares it with the true difference of all runs instead, without a
bound on the rate. The intervals beside the rates are exact 95 % intervals for the simulation's random error.
`--runs FOLDER` uses no model: it splits the folder's runs, all of one method, into arms at random.

    python benchmarks/null_verdicts.py --studies 2000
    python benchmarks/null_verdicts.py --only "two-valued" --studies 5000
    python benchmarks/null_verdicts.py --only "of one arm diverged" --over-all-runs
    python benchmarks/null_verdicts.py --runs runs/nullseeds --studies 2000

Axes: A arms, S seeds, P problems.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atrium.compare.outcomes import outcome_table, read_answers
from atrium.runs.reader import read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.stats.arm_pairs import ScoredArms
from atrium.stats.failures import exact_interval
from atrium.stats.readings import as_always_wrong
from atrium.stats.simultaneous import Family
from atrium.stats.wording import Verdict, under_both_readings

Counts = NDArray[np.int64]
Values = NDArray[np.float64]
NUM_SAMPLES, NUM_PROBLEMS = 8, 60
MAX_FALSE, MAX_WRONG = 0.07, 0.05
EFFECTS = (0.05, 0.2)
_DIFFICULTY = 0.3, 0.6
_COLLAPSED, _DIVERGED = 0.02, 0.15
"""The share of correct answers of a collapsed run, and of a diverged run."""


class Cell(NamedTuple):
    """A design: the seeds of each arm, with the baseline first, and the distribution of the runs.

    `noise` is the distribution over seeds; `collapse` is the share of runs that collapse; `noisy` is the
    index of an arm whose seeds vary three times as much; `diverged` is the share of diverged runs of each
    arm; `clusters` is the number of clusters of problems with a common effect, 0 for none; `looks` are the
    numbers of seeds at which the study is analyzed, empty for a single analysis.
    """

    name: str
    seeds: tuple[range, ...]
    noise: str = "normal"
    collapse: float = 0.0
    noisy: int | None = None
    diverged: tuple[float, ...] = ()
    clusters: int = 0
    looks: tuple[int, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether the bounds on the error rates apply: every arm has at least three seeds."""
        return min(map(len, self.seeds)) > 2

    def difference(self, effect: float, *, counts_diverged: bool = True) -> float:
        """Return the true mean score of the last arm minus that of the baseline.

        Without `counts_diverged`, the means are over runs that do not diverge; a verdict on a study without
        diverged runs is about this difference.
        """
        means = [0.0, 0.0]
        for side, arm in enumerate((0, -1)):
            healthy = _DIFFICULTY[0] + (_DIFFICULTY[1] - _DIFFICULTY[0]) / 2 + side * effect
            kept = self.collapse * _COLLAPSED + (1.0 - self.collapse) * healthy
            diverged = self.diverged[arm] if self.diverged and counts_diverged else 0.0
            means[side] = diverged * _DIVERGED + (1.0 - diverged) * kept
        return means[1] - means[0]


class Rates(NamedTuple):
    """The numbers of studies with a false verdict and with a wrong exclusion, of `num_studies` each."""

    num_false: int
    num_wrong: int
    num_studies: int


def cells() -> Iterator[Cell]:
    """Yield all designs."""
    for num in (2, 3, 5, 10):
        yield Cell(f"{num} paired seeds", (range(num),) * 2)
    for one, other, collapse in ((8, 3, 0.0), (5, 2, 0.0), (10, 3, 0.3), (10, 2, 0.3), (8, 3, 0.3)):
        name = f"{one} against {other} seeds" + (", 30% collapse" if collapse else "")
        yield Cell(name, (range(other), range(100, 100 + one)), collapse=collapse)
    for num, common in ((5, 0), (5, 1), (5, 3), (4, 3)):
        yield Cell(
            f"{num} and {num} seeds, {common} common", (range(num), range(num - common, 2 * num - common))
        )
    for num, share in product((2, 3, 5, 10), (0.3, 0.5)):
        yield Cell(f"{num} two-valued seeds, {share:.0%} collapse", (range(num),) * 2, collapse=share)
    yield Cell("5 and 5 unpaired two-valued seeds, 30% collapse", (range(5), range(5, 10)), collapse=0.3)
    yield Cell("3 and 3 unpaired two-valued seeds, 50% collapse", (range(3), range(3, 6)), collapse=0.5)
    for num in (3, 5, 10):
        yield Cell(f"{num} heavy-tailed seeds", (range(num),) * 2, noise="heavy")
    yield from _cells_of_several_arms()
    for num, share in product((3, 5), (0.0, 0.2, 0.4)):
        yield Cell(f"{num} seeds, {share:.0%} diverged", (range(num),) * 2, diverged=(share, share))
    yield Cell("8 against 3 seeds, 20% diverged", (range(3), range(100, 108)), diverged=(0.2, 0.2))
    for num, share in product((3, 5, 10), (0.2, 0.4)):
        name = f"{num} seeds, {share:.0%} of one arm diverged"
        yield Cell(name, (range(num),) * 2, diverged=(0.0, share))
    for num, clusters in product((3, 5), (6, 10, 30)):
        yield Cell(f"{num} seeds, {clusters} clusters", (range(num),) * 2, clusters=clusters)
    yield Cell("planned looks at 3 and 5 seeds", (range(5),) * 2, looks=(3, 5))
    yield Cell("planned looks at 3, 5 and 10 seeds", (range(10),) * 2, looks=(3, 5, 10))


def _cells_of_several_arms() -> Iterator[Cell]:
    for num_arms, num in product((3, 5), (2, 3, 5, 10)):
        name, seeds = f"{num_arms} arms, {num} seeds", (range(num),) * num_arms
        yield Cell(name, seeds)
        if num > 2:
            yield Cell(f"{name}, the baseline 3 times as noisy", seeds, noisy=0)
            yield Cell(f"{name}, a candidate 3 times as noisy", seeds, noisy=1)
            yield Cell(f"{name}, 30% collapse", seeds, collapse=0.3)
            yield Cell(f"{name}, 50% collapse", seeds, collapse=0.5)
    yield Cell("3 arms, 8, 3 and 5 seeds", (range(3), range(10, 18), range(20, 25)))


def drawn(
    cell: Cell, effect: float, rng: np.random.Generator
) -> tuple[list[Values], list[NDArray[np.bool_]]]:
    """Draw a study: the shares of correct answers [S, P] of each arm, and which of its runs diverged [S].

    Runs of the last arm that neither collapse nor diverge are better by `effect`.
    """
    difficulty_P = rng.uniform(*_DIFFICULTY, NUM_PROBLEMS)
    shared = dict.fromkeys({seed for seeds in cell.seeds for seed in seeds}, 0.0)
    shared = {seed: rng.normal(0.0, 0.02) for seed in sorted(shared)}
    values, diverged = [], []
    for arm, seeds in enumerate(cell.seeds):
        num = len(seeds)
        spread = rng.standard_t(3, num) / 3**0.5 if cell.noise == "heavy" else rng.normal(size=num)
        level_S = spread * (0.09 if arm == cell.noisy else 0.03) + [shared[seed] for seed in seeds]
        own_P = rng.normal(0.0, 0.06, NUM_PROBLEMS)
        if cell.clusters:
            own_P = own_P / 2 + rng.normal(0.0, 0.08, cell.clusters)[cluster_numbers(cell.clusters)]
        share_SP = difficulty_P + own_P + level_S[:, None] + rng.normal(0.0, 0.05, (num, NUM_PROBLEMS))
        share_SP += effect * (arm == len(cell.seeds) - 1)
        has_collapsed_S = rng.random(num) < cell.collapse
        has_diverged_S = rng.random(num) < (cell.diverged[arm] if cell.diverged else 0.0)
        share_SP[has_collapsed_S] = _COLLAPSED
        share_SP[has_diverged_S] = _DIVERGED
        values.append(rng.binomial(NUM_SAMPLES, share_SP.clip(0.0, 1.0)) / NUM_SAMPLES)
        diverged.append(has_diverged_S)
    return values, diverged


def cluster_numbers(num_clusters: int) -> Counts:
    """Return each problem's cluster [P]; clusters in the first half are twice as large as the others."""
    weights = np.where(np.arange(num_clusters) < num_clusters // 2, 2.0, 1.0)
    ends = np.cumsum(weights) / weights.sum() * NUM_PROBLEMS
    return np.searchsorted(ends, np.arange(NUM_PROBLEMS), side="right")


def verdicts_on(
    cell: Cell, values: Sequence[Values], diverged: Sequence[NDArray[np.bool_]]
) -> list[list[Verdict]]:
    """Return the verdicts on all candidates at each look; without planned looks, there is a single look."""
    looks = cell.looks or (max(map(len, cell.seeds)),)
    family = Family(num_candidates=len(values) - 1, num_looks=len(looks))
    clusters = [cluster_numbers(cell.clusters)] if cell.clusters else None
    found = []
    for look in looks:
        by_reading = []
        for reading in (values, [as_always_wrong([v], d)[0] for v, d in zip(values, diverged, strict=True)]):
            arms = ScoredArms(
                values={str(arm): [value_SP[:look]] for arm, value_SP in enumerate(reading)},
                seeds={str(arm): list(seeds)[:look] for arm, seeds in enumerate(cell.seeds)},
                family=family,
                clusters=clusters,
            )
            by_reading.append(list(arms.verdicts("0").values()))
            if not any(flags.any() for flags in diverged):
                by_reading.append(by_reading[0])
                break
        found.append(
            [
                under_both_readings(one, two, ["a run"] if diverged[0].any() or diverged[arm].any() else [])
                for arm, (one, two) in enumerate(zip(*by_reading, strict=True), start=1)
            ]
        )
    return found


def measure(
    cell: Cell, num_studies: int, effects: Sequence[float] = EFFECTS, *, over_all_runs: bool = False
) -> Rates:
    """Count the studies of a cell with a false verdict and, for the worst effect, with a wrong exclusion.

    If the arms diverge at unequal rates, they truly differ, and only a verdict of the wrong sign is false.
    """
    key = sum(ord(character) * (place + 1) for place, character in enumerate(cell.name))
    num_false = num_wrong = 0
    for place, effect in enumerate((0.0, *effects)):
        rng, true = np.random.default_rng([key, place]), cell.difference(effect)
        right = {0: "", 1: "better", -1: "worse"}[int(np.sign(round(true, 9)))]
        draws = [drawn(cell, effect, rng) for _ in range(num_studies)]
        studies = [verdicts_on(cell, *draw) for draw in draws]
        if effect == 0.0:
            wrong = [one.names_difference and one.kind != right for study in studies for one in _all(study)]
            num_false = sum(np.array(wrong).reshape(num_studies, -1).any(axis=1).tolist())
        sizes = [
            abs(cell.difference(effect, counts_diverged=over_all_runs or any(map(np.any, diverged))))
            for _, diverged in draws
        ]
        excluding = (
            any(excludes(looked[-1], size) for looked in study)
            for study, size in zip(studies, sizes, strict=True)
        )
        num_wrong = max(num_wrong, sum(excluding))
    return Rates(num_false, num_wrong, num_studies)


def _all(study: Sequence[Sequence[Verdict]]) -> list[Verdict]:
    return [verdict for looked in study for verdict in looked]


def excludes(verdict: Verdict, true: float) -> bool:
    """Return whether a verdict excludes differences of the size `true`."""
    return verdict.excluded is not None and verdict.excluded < true


def read_values(folder: Path) -> Values:
    """Return Mean@K [S, P] of each run on each test problem at its last evaluation."""
    answers = []
    for path in sorted(folder.iterdir()):
        run = RunFolder(path)
        for benchmark, points in read_evaluations(run).items():
            if "test" in benchmark:
                answers.append(read_answers(run, benchmark, points[-1].step))
    return outcome_table(answers).mean_at_k()


def split(value_SP: Values, num_seeds: int, num_candidates: int, num_studies: int) -> int:
    """Return in how many random splits of one method's runs a verdict names a difference."""
    rng = np.random.default_rng([num_seeds, num_candidates])
    num_arms = num_candidates + 1
    cell = Cell("split", (range(num_seeds),) * num_arms)
    num_false = 0
    for _ in range(num_studies):
        chosen = value_SP[rng.permutation(len(value_SP))[: num_seeds * num_arms]]
        values = list(chosen.reshape(num_arms, num_seeds, -1))
        [looked] = verdicts_on(cell, values, [np.zeros(num_seeds, dtype=bool)] * num_arms)
        num_false += any(one.names_difference for one in looked)
    return num_false


def rate_text(count: int, num: int, bound: float | None) -> str:
    """Format a rate such as `3.1 (2.4 to 3.9)` in percent, with a mark if it exceeds its bound."""
    low, high = exact_interval(count, num)
    mark = " **over**" if bound is not None and count / num > bound else ""
    return f"{100 * count / num:.1f} ({100 * low:.1f} to {100 * high:.1f}){mark}"


def main() -> int:
    """Print the error rates of all designs as a Markdown table; return 1 if a rate exceeds its bound."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--studies", type=int, default=2000, help="simulated studies per cell (default %(default)s)"
    )
    options.add_argument(
        "--only", default="", metavar="TEXT", help="only cells whose name contains this text"
    )
    options.add_argument("--runs", type=Path, help="a folder of runs of one method, split at random")
    options.add_argument("--over-all-runs", action="store_true", help="also count runs that would diverge")
    args = options.parse_args()
    if args.runs is not None:
        _print_splits(read_values(args.runs), args.studies)
        return 0
    print(f"{args.studies} studies per cell; at most {MAX_FALSE:.0%} false, {MAX_WRONG:.0%} wrong exclusions")
    print("\n| cell | false verdicts, % | wrong exclusions, % |\n| --- | ---: | ---: |")
    started, num_over = time.process_time(), 0
    for cell in cells():
        if args.only not in cell.name:
            continue
        found = measure(cell, args.studies, over_all_runs=args.over_all_runs)
        bounds = (MAX_FALSE, MAX_WRONG) if cell.is_bounded and not args.over_all_runs else (None, None)
        counts = found.num_false, found.num_wrong
        texts = [
            rate_text(count, found.num_studies, bound) for count, bound in zip(counts, bounds, strict=True)
        ]
        num_over += any("over" in text for text in texts)
        print(f"| {cell.name} | {' | '.join(texts)} |", flush=True)
    print(f"\n{num_over} cells over a bound; {(time.process_time() - started) / 60:.1f} CPU minutes")
    return 1 if num_over else 0


def _print_splits(value_SP: Values, num_studies: int) -> None:
    score_S = 100 * value_SP.mean(axis=1)
    print(f"{len(score_S)} runs, mean {score_S.mean():.1f} %, deviation {score_S.std(ddof=1):.1f} points")
    for num_seeds, num_candidates in product((3, 5, 10), (1, 3)):
        if num_seeds * (num_candidates + 1) <= len(score_S):
            found = split(value_SP, num_seeds, num_candidates, num_studies)
            print(f"{num_seeds} seeds, {num_candidates} candidates: {rate_text(found, num_studies, None)}")


if __name__ == "__main__":
    sys.exit(main())
