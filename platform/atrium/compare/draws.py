"""Notes on the random draws with which the evaluations of a comparison were sampled.

The draws depend on the evaluation seed and, after the first training step, on the run's seed. Equal seeds of
two arms then share random numbers, and the sampling noise is independent over seeds. Older records do
not name the run's seed, because all seeds shared one stream of random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrium.base.nested import setting
from atrium.compare.arms import Arm
from atrium.compare.outcomes import EvaluatedRun
from atrium.runs.layout import IMPORTED


def draws_of(run: EvaluatedRun, benchmark: str, step: int) -> str:
    """Return the seeds of an evaluation's draws as text, such as `evaluation.seed=0 with the run's seed 1`.

    If the evaluation did not record its draws, all seeds used one stream of random numbers, as in older
    versions.
    """
    evaluation_seed, run_seed = setting(run.config, "evaluation.seed"), None
    for point in run.evaluations[benchmark]:
        if point.step == step and isinstance(point.results.get("draws"), Mapping):
            evaluation_seed = setting(point.results, "draws.evaluation_seed")
            run_seed = setting(point.results, "draws.run_seed")
    shared = "for all seeds" if run_seed is None else f"with the run's seed {run_seed}"
    return f"evaluation.seed={evaluation_seed} {shared}"


def read_draws(
    arms: Sequence[Arm], runs: Mapping[str, EvaluatedRun], steps: Mapping[str, Mapping[str, int]]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of the arms whose seeds share random draws, and notes on unpaired random draws.

    There is a note on each arm in which a run was evaluated with different draws from those of the baseline's
    run with the same seed, and on each arm that samples continuously. `steps` are the evaluated steps by
    benchmark and run. The first arm is the baseline.
    """
    shared: dict[str, None] = {}
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
                shared[arm.name] = None
        for candidate in arms[1:]:
            for seed in sorted(set(arms[0].runs) & set(candidate.runs)):
                one, two = (draws.get(arm.runs[seed].name) for arm in (arms[0], candidate))
                if one and two and one != two:
                    notes[_unpaired(arms[0], candidate, seed, one, two)] = None
                    break
    for arm in arms:
        if any(setting(runs[folder.name].config, "rollout.continuous") for folder in arm.runs.values()):
            notes[f"{arm.name} samples continuously: runs with equal seeds train on different answers"] = None
    return tuple(shared), list(notes)


def _unpaired(one: Arm, two: Arm, seed: int, draws: str, others: str) -> str:
    return (
        f"{one.name} and {two.name}: equal seeds were evaluated with different random draws (seed {seed}: "
        f"{draws}; {others}), so pairing them shares no sampling noise"
    )
