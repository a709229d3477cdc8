"""Rollouts, evaluations and metrics of prime-rl, and evaluations of verifiers.

Both write `traces.jsonl` with an episode per line. Sources: prime-rl 559b447 (`monitors/file.py`: below
`rollouts/step_<n>/{train,eval}/{all,effective}`, and `metrics.jsonl`), verifiers 0.4.0 (`v1/episode.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.metric_names import known_words, mapped
from atrium.base.nested import mapping_at, setting
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Curve, Source, Stated, correctness, whole_number
from atrium.imports.files import rows
from atrium.imports.tables import conversation_text
from atrium.runs.layout import TRAINING

_TRACES = "traces.jsonl"
_TWICE = (("train", "all"), ("eval", "effective"))
"""Directories whose episodes are a part of another's: training batches, and all of an evaluation."""


def is_repeated(path: Path) -> bool:
    """Whether a directory's import reads the episodes of this file in another."""
    return path.name == _TRACES and path.parts[-3:-1] in _TWICE


def is_episodes(path: Path, row: Row) -> bool:
    """Whether prime-rl or verifiers wrote the episodes."""
    return path.suffix == ".jsonl" and {"id", "env", "task", "traces"} <= row.keys()


def read_episodes(path: Path, stated: Stated) -> Source:
    """The episodes of one step or evaluation. An episode without a reward, such as a failed one, is wrong."""
    found = rows(path)
    first = next(found)
    trace = _trainable(*first)
    rewards = ", ".join(mapping_at(trace, "rewards")) or "none"
    reward = stated.columns.get("score", "")
    if reward and reward not in mapping_at(trace, "rewards"):
        raise ConfigError(f"{path}: --map score={reward}: the rewards are {rewards}")
    named = setting(first[1], "run.name"), setting(trace, "agent.config.model")
    method = stated.method or next((str(one).rpartition("/")[2] for one in named if one), "")
    if not method:
        raise ConfigError(f"{path}: names neither the run nor its model; give --method NAME")
    model = setting(trace, "agent.config.model")
    is_training = setting(first[1], "run.work.type") == "train"
    return Source(
        path=path,
        format="prime-rl training episodes" if is_training else "prime-rl or verifiers episodes",
        mapping=(
            f"method is {method}",
            f"score is the reward {reward}"
            if reward
            else f"score is the weighted sum of the rewards: {rewards}",
        ),
        answers=(_answer(place, row, method, reward, stated) for place, row in chain([first], found)),
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
        step=whole_number(step, "step", place) if step is not None else stated.step or 0,
        problem=str(task.get("key") or ("" if data.get("idx") is None else f"{name}/{data['idx']}")),
        question=conversation_text(data.get("prompt")),
        gold=str(data.get("answer") or ""),
        sample=str(row["id"]),
        text=_reply(trace),
        num_tokens=tokens if isinstance(tokens, int) else None,
        is_truncated=finish == "length" if finish else None,
    )


def _trainable(place: str, row: Row) -> Mapping[str, object]:
    """The trace of the agent that is trained or evaluated; empty where an episode failed before it."""
    traces = row.get("traces")
    found = [one for one in traces if isinstance(one, Mapping)] if isinstance(traces, list) else []
    found = [one for one in found if setting(one, "agent.trainable") is not False]
    if len(found) > 1:
        raise DataError(f"{place}: the episode has {len(found)} trainable agents; Atrium reads one")
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
    """Whether a file holds metrics by step, one object a line, as prime-rl's file monitor writes them."""
    return path.name == "metrics.jsonl" and "step" in row and "data" not in row


def read_metrics_log(path: Path, stated: Stated) -> Source:
    """The metrics of each step."""
    if not stated.method:
        raise ConfigError(f"{path}: metrics do not name the method; give --method NAME")
    steps: dict[int, dict[str, float]] = {}
    names: dict[str, None] = {}
    for place, row in rows(path):
        own = steps.setdefault(whole_number(row.get("step"), "step", place), {})
        own |= mapped(row)
        names |= dict.fromkeys(name for name in row if mapped({name: row[name]}))
    if not any(steps.values()):
        raise DataError(f"{path}: holds no metrics of steps")
    words = (f"method is {stated.method}", known_words([*names]))
    curve = Curve(method=stated.method, steps=steps, seed=stated.seed)
    return Source(path=path, format="metrics by step", mapping=words, curves=(curve,))
