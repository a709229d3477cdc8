"""Which random draws evaluations were sampled with, and what a comparison has to say about them.

Draws are keyed by the seed of evaluations and, once a run has trained, by the run's seed. Equal seeds of two
arms then share random numbers, and the noise of sampling is independent over seeds. Records from before a
run's seed keyed draws name none: all their seeds shared one stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrium.base.nested import setting
from atrium.compare.arms import Arm
from atrium.compare.outcomes import EvaluatedRun
from atrium.runs.layout import IMPORTED


def draws_of(run: EvaluatedRun, benchmark: str, step: int) -> str:
    """The seeds that keyed an evaluation's draws, as it recorded them or as they were before it did."""
    evaluation_seed, run_seed = setting(run.config, "evaluation.seed"), None
    for point in run.evaluations[benchmark]:
        if point.step == step and isinstance(point.results.get("draws"), Mapping):
            evaluation_seed = setting(point.results, "draws.evaluation_seed")
            run_seed = setting(point.results, "draws.run_seed")
    shared = "for all seeds alike" if run_seed is None else f"with the run's seed {run_seed}"
    return f"evaluation.seed={evaluation_seed} {shared}"


def draws_notes(
    arms: Sequence[Arm], runs: Mapping[str, EvaluatedRun], steps: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Notes on seeds of an arm that share draws, and on equal seeds of two arms that do not.

    `steps` are the evaluated ones by benchmark and run. The first arm is the baseline.
    """
    notes: dict[str, None] = {}
    for benchmark, used in steps.items():
        draws = {
            name: draws_of(run, benchmark, used[name])
            for name, run in runs.items()
            if name in used and run.config.get("kind") != IMPORTED
        }
        for arm in arms:
            own = [draws[folder.name] for folder in arm.runs.values() if folder.name in draws]
            if len(set(own)) < len(own):
                notes[_shared(arm)] = None
        for candidate in arms[1:]:
            for seed in sorted(set(arms[0].runs) & set(candidate.runs)):
                one, two = (draws.get(arm.runs[seed].name) for arm in (arms[0], candidate))
                if one and two and one != two:
                    notes[_unpaired(arms[0], candidate, seed, one, two)] = None
                    break
    for arm in arms:
        if any(setting(runs[folder.name].config, "rollout.continuous") for folder in arm.runs.values()):
            notes[f"{arm.name} samples continuously: a run with the same seed trains on other answers"] = None
    return list(notes)


def _shared(arm: Arm) -> str:
    # A correlation of .67 between five seeds makes an interval 2.7 times too narrow.
    return (
        f"{arm.name}: its seeds were evaluated with the same random draws, so their noise is not independent "
        "and intervals over them are up to three times too narrow; `atrium evaluate --run RUN` evaluates a "
        "checkpoint with draws of its own seed"
    )


def _unpaired(one: Arm, two: Arm, seed: int, draws: str, others: str) -> str:
    return (
        f"{one.name} and {two.name}: equal seeds were evaluated with different random draws (seed {seed}: "
        f"{draws}; {others}), so pairing them shares no sampling noise"
    )
