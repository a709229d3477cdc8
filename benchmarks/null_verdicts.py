"""How often equal methods are told apart: false verdicts of `atrium compare` and of a sweep's last stage.

A run's answers are drawn from a model of seeds, problems and sampling: a seed shifts all problems, each
problem is its own, and some runs collapse. All arms are drawn alike, so that every verdict that names a
difference is false. A study is what is judged: several candidates count as one error (the intervals hold
together). With `--runs FOLDER` there is no model: the runs of one method that lie there are split at random
into arms, and go through the same functions.

    python benchmarks/null_verdicts.py --studies 5000
    python benchmarks/null_verdicts.py --runs runs/nullseeds --studies 2000
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from atrium.cli.sweep.report import verdict_on
from atrium.compare.arm_pairs import MEAN, compare_pairs
from atrium.compare.arms import Arm
from atrium.compare.outcomes import OutcomeTable, outcome_table, read_answers
from atrium.sweep.final import BASELINE, WINNER, FinalRun
from atrium.sweep.results import FINISHED, SeedResult
from atrium.tracking.reader import read_evaluations
from atrium.tracking.run_folder import RunFolder

Counts = NDArray[np.int64]
NUM_SAMPLES = 8
FALSE = ("better", "worse", "depends_on_diverged")


class Cell(NamedTuple):
    """A design: seeds per arm, problems, candidates beside the baseline, and how many runs collapse."""

    num_seeds: int
    num_problems: int
    num_candidates: int
    collapse: float


def cells() -> Iterator[Cell]:
    """3, 5 and 10 seeds; 30 and 200 problems; one and three candidates; no collapse, and three in ten."""
    for values in product((3, 5, 10), (30, 200), (1, 3), (0.0, 0.3)):
        yield Cell(*values)


def drawn_arms(cell: Cell, rng: np.random.Generator) -> Counts:
    """Correct answers of every arm, seed and problem [A, S, P], of 8 samples each."""
    shape = (cell.num_candidates + 1, cell.num_seeds, cell.num_problems)
    difficulty_P = rng.normal(0.0, 2.0, cell.num_problems)
    # What an arm does with a problem differs from what another does, though neither is better on the whole.
    logit_ASP = difficulty_P + rng.normal(0.0, 0.45, (shape[0], 1, shape[2])) + rng.normal(0.0, 0.3, shape)
    logit_ASP += rng.normal(0.0, 0.25, (*shape[:2], 1))
    share_ASP = np.where(rng.random((*shape[:2], 1)) < cell.collapse, 0.02, expit(logit_ASP))
    return rng.binomial(NUM_SAMPLES, share_ASP)


def compared(count_ASP: Counts) -> bool:
    """Whether `atrium compare` names a difference between any candidate and the baseline."""
    num_arms, num_seeds, num_problems = count_ASP.shape
    runs = {seed: RunFolder(Path(str(seed))) for seed in range(num_seeds)}
    arms = [Arm(name=str(arm), runs=runs, settings={"arm": str(arm)}, window=None) for arm in range(num_arms)]
    tables = {
        str(arm): OutcomeTable(
            benchmark="exam",
            problem_ids=tuple(map(str, range(num_problems))),
            num_correct_SP=count_SP,
            num_samples_S=(NUM_SAMPLES,) * num_seeds,
        )
        for arm, count_SP in enumerate(count_ASP)
    }
    pairs = compare_pairs(arms, {"exam": tables}, MEAN, k=1, seed=0, notes=[])
    return any(pair.verdict.kind in FALSE for pair in pairs)


def swept(count_ASP: Counts) -> bool:
    """Whether a sweep's last stage names a difference between any setting and the baseline."""
    roles = [BASELINE, WINNER, *(f"setting {arm}" for arm in range(2, len(count_ASP)))]
    runs = [
        FinalRun(
            role=role,
            seed=seed,
            result=SeedResult(seed=seed, state=FINISHED, step=1, collapse="", test={"exam": exam(count_P)}),
            reason=None,
        )
        for seed in range(count_ASP.shape[1])
        for role, count_P in zip(roles, count_ASP[:, seed], strict=True)
    ]
    return any(one["kind"] in FALSE for one in verdict_on(runs, {role: role for role in roles})["contrasts"])


def exam(count_P: Counts) -> dict[str, object]:
    """A test result as a sweep records it."""
    shares = (count_P / NUM_SAMPLES).tolist()
    return {"step": 1, "mean_at_k": float(np.mean(shares)), "problem_means": shares}


def measure(cell: Cell, num_studies: int) -> dict[str, float]:
    """The share of studies with a false verdict, by either way to one."""
    rng = np.random.default_rng(
        [cell.num_seeds, cell.num_problems, cell.num_candidates, int(10 * cell.collapse)]
    )
    studies = [drawn_arms(cell, rng) for _ in range(num_studies)]
    return {
        "compare": float(np.mean([compared(count_ASP) for count_ASP in studies])),
        "sweep": float(np.mean([swept(count_ASP) for count_ASP in studies])),
    }


def read_counts(folder: Path) -> Counts:
    """Correct answers of every run on the test problems after its last step [S, P], of 8 samples each."""
    answers = []
    for path in sorted(folder.iterdir()):
        run = RunFolder(path)
        for benchmark, points in read_evaluations(run).items():
            if "test" in benchmark:
                answers.append(read_answers(run, benchmark, points[-1].step))
    table = outcome_table(answers)
    if set(table.num_samples_S) != {NUM_SAMPLES}:
        raise SystemExit(f"{folder}: evaluate with {NUM_SAMPLES} samples per problem")
    return table.num_correct_SP


def split(count_SP: Counts, num_seeds: int, num_candidates: int, num_studies: int) -> float:
    """The share of random splits of runs of one method in which a candidate is told from the baseline."""
    rng = np.random.default_rng([num_seeds, num_candidates])
    num_arms = num_candidates + 1
    found = [
        compared(
            count_SP[rng.permutation(len(count_SP))[: num_seeds * num_arms]].reshape(num_arms, num_seeds, -1)
        )
        for _ in range(num_studies)
    ]
    return float(np.mean(found))


def main() -> None:
    """Print false verdicts by design."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--studies", type=int, default=1000, help="per design (default %(default)s)")
    options.add_argument("--runs", type=Path, help="a folder of runs of one method, split at random")
    args = options.parse_args()
    error = 2 * (0.07 * 0.93 / args.studies) ** 0.5
    print(f"{args.studies} studies per design; at most 7 % false, and two standard errors {error:.1%}")
    if args.runs is not None:
        _print_splits(read_counts(args.runs), args.studies)
        return
    print("seeds  problems  candidates  collapse   compare   sweep")
    for cell in cells():
        found = measure(cell, args.studies)
        print(
            f"{cell.num_seeds:5d}  {cell.num_problems:8d}  {cell.num_candidates:10d}  {cell.collapse:8.1f}"
            f"   {found['compare']:7.1%}  {found['sweep']:6.1%}",
            flush=True,
        )


def _print_splits(count_SP: Counts, num_studies: int) -> None:
    score_S = 100 * count_SP.mean(axis=1) / NUM_SAMPLES
    print(f"{len(score_S)} runs, mean {score_S.mean():.1f} %, deviation {score_S.std(ddof=1):.1f} points")
    for num_seeds, num_candidates in product((3, 5, 10), (1, 3)):
        if num_seeds * (num_candidates + 1) <= len(score_S):
            found = split(count_SP, num_seeds, num_candidates, num_studies)
            print(f"{num_seeds:2d} seeds, {num_candidates} candidates: {found:.1%}", flush=True)


if __name__ == "__main__":
    main()
