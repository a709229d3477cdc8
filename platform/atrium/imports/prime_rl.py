"""Readers of prime-rl (rollouts, evaluations, metrics) and verifiers (evaluations).

Both programs write `traces.jsonl` with one episode per line. Formats: prime-rl 559b447 (`monitors/file.py`),
which writes `traces.jsonl` into `rollouts/step_<n>/{train,eval}/{all,effective}` and metrics into
`metrics.jsonl`, and verifiers 0.4.0 (`v1/episode.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.nested import mapping_at, setting
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Source, Stated, correctness, whole_number
from atrium.imports.files import rows
from atrium.imports.tables import conversation_text
from atrium.imports.trackers import TrackedRun, curve_source
from atrium.imports.trainers import recorded_step, stated_method
from atrium.runs.layout import TRAINING

_TRACES = "traces.jsonl"
_TWICE = (("train", "all"), ("eval", "effective"))
"""Skipped directories, since training is read from `train/effective` and evaluations from `eval/all`."""


def is_repeated(path: Path) -> bool:
    """Return whether a directory import skips this file, because another file contains the same episodes."""
    return path.name == _TRACES and path.parts[-3:-1] in _TWICE


def is_episodes(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and columns of prime-rl or verifiers episodes."""
    return path.suffix == ".jsonl" and {"id", "env", "task", "traces"} <= row.keys()


def read_episodes(path: Path, first: Row, stated: Stated) -> Source:
    """Read the episodes of one step or evaluation; episodes without a reward count as incorrect."""
    trace = _trainable(f"{path}, row 1", first)
    rewards = ", ".join(mapping_at(trace, "rewards")) or "none"
    reward = stated.columns.get("score", "")
    if reward and reward not in mapping_at(trace, "rewards"):
        raise ConfigError(f"{path}: --map score={reward}: unknown reward; use one of {rewards}")
    named = setting(first, "run.name"), setting(trace, "agent.config.model")
    method = stated.method or next((str(one).rpartition("/")[2] for one in named if one), "")
    if not method:
        raise ConfigError(f"{path} names neither a run nor a model; give --method NAME")
    model = setting(trace, "agent.config.model")
    is_training = setting(first, "run.work.type") == "train"
    return Source(
        path=path,
        format="prime-rl training episodes" if is_training else "prime-rl or verifiers episodes",
        mapping=(
            f"method is {method}",
            f"score is the reward {reward}"
            if reward
            else f"score is the weighted sum of the rewards: {rewards}",
        ),
        answers=(_answer(place, row, method, reward, stated) for place, row in rows(path)),
        settings={} if is_training or not model else {"model.source": model},
        differences=("episodes that failed count as incorrect",),
    )


def _answer(place: str, row: Row, method: str, reward: str, stated: Stated) -> Answer:
    trace, task = _trainable(place, row), mapping_at(row, "task")
    data, rewards, calls = mapping_at(task, "data"), mapping_at(trace, "rewards"), trace.get("calls")
    scores = [_value(one) for name, one in rewards.items() if reward in ("", name)]
    last = calls[-1] if isinstance(calls, list) and calls and isinstance(calls[-1], Mapping) else {}
    finish, tokens = last.get("finish_reason"), trace.get("num_output_tokens")
    is_training = setting(row, "run.work.type") == "train"
    name = str(setting(row, "env.name") or setting(row, "env.id") or "episodes")
    step = setting(row, "run.work.step")
    return Answer(
        method=method,
        is_correct=correctness(sum(scores), stated, place),
        place=place,
        seed=stated.seed,
        benchmark=stated.benchmark or (TRAINING if is_training else name),
        step=recorded_step(step, stated, place) if step is not None else stated.step or 0,
        problem=str(task.get("key") or ("" if data.get("idx") is None else f"{name}/{data['idx']}")),
        question=conversation_text(data.get("prompt")),
        gold=str(data.get("answer") or ""),
        sample=str(row["id"]),
        text=_reply(trace),
        num_tokens=tokens if isinstance(tokens, int) else None,
        is_truncated=finish == "length" if finish else None,
    )


def _trainable(place: str, row: Row) -> Mapping[str, object]:
    """Return the trace of the agent that is trained or evaluated.

    The trace is empty if the episode failed before this agent started. Raises `DataError` if there are
    several such agents.
    """
    traces = row.get("traces")
    found = [one for one in traces if isinstance(one, Mapping)] if isinstance(traces, list) else []
    found = [one for one in found if setting(one, "agent.trainable") is not False]
    if len(found) > 1:
        raise DataError(f"{place}: an episode must have one trainable agent, got {len(found)}")
    return found[0] if found else {}


def _value(reward: object) -> float:
    parts = (reward.get("score"), reward.get("weight", 1.0)) if isinstance(reward, Mapping) else (0.0, 1.0)
    score, weight = (float(one) if isinstance(one, int | float) else 0.0 for one in parts)
    return score * weight


def _reply(trace: Mapping[str, object]) -> str:
    nodes = trace.get("nodes")
    said = (
        [one for one in nodes if isinstance(one, Mapping) and one.get("sampled")]
        if isinstance(nodes, list)
        else []
    )
    return conversation_text(said[-1].get("message")) if said else ""


def is_metrics_log(path: Path, row: Row) -> bool:
    """Return whether a file is the `metrics.jsonl` of prime-rl's file monitor.

    Each line of this file contains a step and metrics of that step.
    """
    return path.name == "metrics.jsonl" and "step" in row and "data" not in row


def read_metrics_log(path: Path, _first: Row, stated: Stated) -> Source:
    """Read the curves of one run, whose method is `stated.method`.

    Raises `ConfigError` if no method is stated.
    """
    steps: dict[int, dict[str, object]] = {}
    for place, row in rows(path):
        steps.setdefault(whole_number(row.get("step"), "step", place), {}).update(row)
    run = TrackedRun(method=stated_method(path, stated), steps=steps)
    return curve_source(path, "metrics by step", [run], stated)
