"""Train the missing runs of the registered study of SmolLM2-135M (docs/designs.md), and print its verdict.

    python benchmarks/smollm2_verdict.py                   print the numbers of runs and the verdict
    python benchmarks/smollm2_verdict.py --run 1 SETTINGS  train the next missing run and record it

The only state is docs/outcomes/smollm2_verdict.csv. Each finished run adds a row to it, so that another
machine can continue the study. All arms of a seed are trained before the next seed.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from scipy import stats

from atrium.runs.find import find_runs
from atrium.runs.reader import read_metrics
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import read_samples

ROOT = Path(__file__).resolve().parents[1]
OUTCOMES = ROOT / "docs" / "outcomes" / "smollm2_verdict.csv"
DEFINITION = ROOT / "sweeps" / "smollm2_verdict.yaml"
CLIPPED = ("objective/clip_high_frac", "objective/clip_low_frac", "objective/clip_runaway_frac")
CONTRASTS = (("none", "clip"), ("atr", "clip"))
MARGIN, FEWEST_SEEDS = 0.06, 3
Rows = Mapping[tuple[int, str], Mapping[str, str]]


def finished() -> Rows:
    """Return the rows of finished runs by seed and arm."""
    if not OUTCOMES.exists():
        return {}
    with OUTCOMES.open(encoding="utf-8") as file:
        return {(int(row["seed"]), row["arm"]): row for row in csv.DictReader(file)}


def missing(rows: Rows) -> list[tuple[int, str]]:
    """Return seed and arm of each registered run without a row, in the registered order."""
    content = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
    return [(seed, arm) for seed in content["seeds"] for arm in content["arms"] if (seed, arm) not in rows]


def train(seed: int, arm: str, settings: Sequence[str]) -> RunFolder:
    """Train one run of the definition, and return its run directory."""
    content = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
    own = [f"{key}={value}" for key, value in content["arms"].get(arm, {}).items()]
    name = f"experiment_name=smollm2_verdict_{seed}_{arm}"
    command = [*content["base"], *own, f"seed={seed}", name, *settings]
    subprocess.run([sys.executable, "-m", "atrium", "train", *command], cwd=ROOT, check=True)
    return find_runs(ROOT / "runs", [name.partition("=")[2]])[-1]


def row_of(folder: RunFolder, seed: int, arm: str) -> dict[str, str]:
    """Return a finished run's row: Mean@4, mean reward from step 5 on, clip fraction, answers by problem."""
    metrics = read_metrics(folder).columns
    (path,) = folder.evaluations_dir.glob(f"*-test/step-*{len(metrics['rollout/reward'])}.parquet")
    right: dict[str, int] = {}
    for one in read_samples(path, ("problem_id", "is_correct")):
        right[one["problem_id"]] = right.get(one["problem_id"], 0) + bool(one["is_correct"])
    clipped = sum(np.nanmean(metrics[name]) for name in CLIPPED if name in metrics)
    return {
        "seed": str(seed),
        "arm": arm,
        "test": f"{sum(right.values()) / 4 / len(right):.4f}",
        "late": f"{np.mean(metrics['rollout/reward'][4:]):.4f}",
        "clip": f"{clipped:.4f}",
        "correct_of_4": "".join(str(right[name]) for name in sorted(right)),
    }


def record(row: Mapping[str, str]) -> None:
    """Append a row to the file of outcomes."""
    is_new = not OUTCOMES.exists()
    with OUTCOMES.open("a", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def verdicts(rows: Rows) -> list[str]:
    """Return a line for each contrast: its simultaneous interval over seeds, and the verdict.

    Both intervals together have a confidence of 95 %. Only seeds with all arms count.
    """
    arms = {arm for _, arm in missing({})}
    seeds = sorted({seed for seed, _ in rows if all((seed, arm) in rows for arm in arms)})
    if len(seeds) < FEWEST_SEEDS:
        return [f"{len(seeds)} complete seeds; fewer than {FEWEST_SEEDS} decide nothing"]
    quantile = stats.t.ppf(1.0 - 0.025 / len(CONTRASTS), len(seeds) - 1)
    lines = []
    for candidate, baseline in CONTRASTS:
        differences = [
            float(rows[seed, candidate]["test"]) - float(rows[seed, baseline]["test"]) for seed in seeds
        ]
        mean, half = np.mean(differences), quantile * stats.sem(differences)
        low, high = mean - half, mean + half
        said = "different" if low > 0.0 or high < 0.0 else "not decided"
        if low > -MARGIN and high < MARGIN:
            said = "equivalent" if said == "not decided" else "different, and within the margin"
        points = f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        lines.append(f"{candidate} - {baseline}: {points} points over {len(seeds)} seeds, {said}")
    return lines


def means(rows: Rows) -> str:
    """Return a line with each arm's mean over its finished seeds: Mean@4 and clip fraction, in percent."""
    parts = []
    for arm in dict.fromkeys(arm for _, arm in missing({})):
        own = [row for (_, one), row in rows.items() if one == arm]
        if own:
            score, clipped = (100 * np.mean([float(row[name]) for row in own]) for name in ("test", "clip"))
            parts.append(f"{arm} {score:.1f} % (clipped {clipped:.1f} %)")
    return "Mean@4: " + ", ".join(parts)


def main() -> None:
    """Train missing runs, and print the numbers of runs and the verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=int, default=0, metavar="N", help="train N of the missing runs")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the runs")
    arguments = parser.parse_args()
    for seed, arm in missing(finished())[: arguments.run]:
        record(row_of(train(seed, arm, arguments.settings), seed, arm))
    rows = finished()
    left = missing(rows)
    words = f"; next: {' '.join(map(str, left[0]))}" if left else ""
    lines = [f"{len(rows)} runs finished, {len(left)} missing{words}", means(rows), *verdicts(rows)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
