"""A batch that is sampled before the update that precedes its own (`rollout.lag=1`), and its record.

The batch is off-policy by one step's updates, so it is part of the run's state: a checkpoint holds it, and
a resumed run trains on the very completions that an undisturbed one trains on. The engine's and the trainer's
log-probabilities are compared when the batch is sampled, since only then are the weights of both equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from atrium import metrics
from atrium.errors import EngineError
from atrium.objective.batch import neutral
from atrium.records import (
    Completion,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    Verdict,
    VerdictKind,
)
from atrium.rollout.collate import RolloutRows
from atrium.train.collect import Collected
from atrium.train.logprobs import PolicyForward
from atrium.train.measurements import Measurements

_RECORD, _ARRAYS = "ahead.json", "ahead.safetensors"


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """The next step's groups, and what was measured while they were sampled."""

    collected: Collected
    measurements: Measurements


def measure_mismatch(
    forward: PolicyForward, rows: RolloutRows, micro_batch_tokens: int, measurements: Measurements
) -> None:
    """Compare the sampled log-probabilities with the trainer's, on one micro-batch of the rows."""
    part = forward.split(rows, np.arange(len(rows.num_tokens_B)), micro_batch_tokens)[0]
    some = rows.select(part)
    with torch.no_grad():
        logprob_BT = forward(some, entropy="none").logprob_BT
    mask_BT = some.batch.mask_BT
    gap_BT = neutral(logprob_BT - some.batch.rollout_logprob_BT, mask_BT).double()
    count = mask_BT.sum()
    measurements.add_sums(
        {
            metrics.MISMATCH_MEAN: (gap_BT.abs().sum(), count),
            metrics.MISMATCH_MAX: (gap_BT.abs().max(), count),
            metrics.MISMATCH_KL: ((torch.expm1(gap_BT) - gap_BT).sum(), count),
        }
    )


def check_mismatch(measured: Mapping[str, float], bound: float | None, step: int) -> None:
    """Raise `EngineError` where engine and trainer differ by more than `bound` nats on average."""
    mean = measured.get(metrics.MISMATCH_MEAN.name)
    if bound is None or mean is None or mean <= bound:
        return
    raise EngineError(
        f"step {step}: on the engine's own samples its log-probabilities differ from the trainer's by "
        f"{mean:.3g} nats on average (at most {measured[metrics.MISMATCH_MAX.name]:.3g}), more than "
        f"rollout.max_mismatch={bound:g}: it samples from other weights or in another precision than is "
        "trained; compare compute.dtype and rollout.kv_cache_dtype, or raise the bound; the last checkpoint "
        "is intact"
    )


def write_ahead(ahead: Ahead, folder: Path) -> None:
    """Write the batch into an existing folder, as JSON and safetensors."""
    collected = ahead.collected
    completions = [r.completion for group in collected.groups for r in group.rollouts]
    record = {
        "cursor": collected.cursor,
        "trains": collected.trains,
        "groups": [_group_record(group) for group in collected.groups],
        "measurements": ahead.measurements.as_record(),
    }
    (folder / _RECORD).write_text(json.dumps(record), encoding="utf-8")
    save_file(
        {
            "prompt_ids": _joined([group.prompt_token_ids for group in collected.groups], np.int32),
            "token_ids": _joined([completion.token_ids for completion in completions], np.int32),
            "logprobs": _joined([completion.logprobs for completion in completions], np.float32),
        },
        folder / _ARRAYS,
    )


def read_ahead(folder: Path) -> Ahead | None:
    """The batch that a folder holds, or None where it holds none."""
    if not (folder / _RECORD).exists():
        return None
    record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    arrays = load_file(folder / _ARRAYS)
    groups, first_prompt, first = [], 0, 0
    for group in record["groups"]:
        rollouts = []
        for rollout in group["rollouts"]:
            last = first + rollout["num_tokens"]
            rollouts.append(
                _rollout(rollout, arrays["token_ids"][first:last], arrays["logprobs"][first:last])
            )
            first = last
        last_prompt = first_prompt + group["num_prompt_tokens"]
        groups.append(
            RolloutGroup(
                problem=Problem(**group["problem"]),
                prompt_token_ids=arrays["prompt_ids"][first_prompt:last_prompt],
                rollouts=tuple(rollouts),
            )
        )
        first_prompt = last_prompt
    collected = Collected(groups=tuple(groups), trains=tuple(record["trains"]), cursor=int(record["cursor"]))
    return Ahead(collected=collected, measurements=Measurements.from_record(record["measurements"]))


def _group_record(group: RolloutGroup) -> dict[str, Any]:
    problem = group.problem
    return {
        "problem": {
            "problem_id": problem.problem_id,
            "question": problem.question,
            "answer": problem.answer,
            "metadata": dict(problem.metadata),
        },
        "num_prompt_tokens": len(group.prompt_token_ids),
        "rollouts": [
            {
                "sample_index": rollout.sample_index,
                "reward": rollout.reward,
                "verdict": asdict(rollout.verdict),
                "num_tokens": rollout.completion.num_tokens,
                "text": rollout.completion.text,
                "finish_reason": rollout.completion.finish_reason,
                "weight_version": rollout.completion.weight_version,
            }
            for rollout in group.rollouts
        ],
    }


def _rollout(record: dict[str, Any], token_ids: Any, logprobs: Any) -> Rollout:  # noqa: ANN401 - arrays from a file
    verdict = record["verdict"]
    return Rollout(
        sample_index=record["sample_index"],
        completion=Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=record["text"],
            finish_reason=FinishReason(record["finish_reason"]),
            weight_version=record["weight_version"],
        ),
        verdict=Verdict(**{**verdict, "kind": VerdictKind(verdict["kind"])}),
        reward=record["reward"],
    )


def _joined(arrays: Sequence[np.ndarray[Any, Any]], dtype: type) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)
