"""Rollout groups as JSON and arrays: for checkpoints, and for ranks that exchange samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from atrium.base.records import (
    Completion,
    FinishReason,
    Logprobs,
    OwnTokens,
    Problem,
    Rollout,
    RolloutGroup,
    TokenIds,
    Verdict,
    VerdictKind,
)

_Arrays = dict[str, NDArray[Any]]


def record_of_groups(groups: Sequence[RolloutGroup]) -> tuple[list[dict[str, Any]], _Arrays]:
    """Return the groups as JSON, and their tokens and log-probabilities as concatenated arrays."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    completions = [rollout.completion for rollout in rollouts]
    behavior = [rollout.behavior_logprobs for rollout in rollouts if rollout.behavior_logprobs is not None]
    return [_group_record(group) for group in groups], {
        "prompt_ids": _joined([group.prompt_token_ids for group in groups], np.int32),
        "token_ids": _joined([completion.token_ids for completion in completions], np.int32),
        "logprobs": _joined([completion.logprobs for completion in completions], np.float32),
        "own": _joined([_own(completion) for completion in completions], np.bool_),
        **({"behavior_logprobs": _joined(behavior, np.float32)} if behavior else {}),
    }


def groups_of_record(
    records: Sequence[Mapping[str, Any]], arrays: Mapping[str, NDArray[Any]]
) -> tuple[RolloutGroup, ...]:
    """Return the groups from the JSON and arrays made by `record_of_groups`."""
    own, behavior = arrays["own"], arrays.get("behavior_logprobs")
    groups, first_prompt, first = [], 0, 0
    for group in records:
        rollouts = []
        for rollout in group["rollouts"]:
            last = first + rollout["num_tokens"]
            tokens = (arrays["token_ids"][first:last], arrays["logprobs"][first:last], own[first:last])
            found = _rollout(rollout, *tokens)
            if behavior is not None:
                found = replace(found, behavior_logprobs=behavior[first:last])
            rollouts.append(found)
            first = last
        last_prompt = first_prompt + group["num_prompt_tokens"]
        groups.append(
            RolloutGroup(
                problem=_problem(group["problem"]),
                prompt_token_ids=arrays["prompt_ids"][first_prompt:last_prompt],
                rollouts=tuple(rollouts),
            )
        )
        first_prompt = last_prompt
    return tuple(groups)


def bytes_of_groups(groups: Sequence[RolloutGroup]) -> bytes:
    """Return the groups as bytes (safetensors), which `groups_of_bytes` reads in another process."""
    records, arrays = record_of_groups(groups)
    content: bytes = save({**arrays, "records": np.frombuffer(json.dumps(records).encode(), dtype=np.uint8)})
    return content


def groups_of_bytes(content: bytes) -> tuple[RolloutGroup, ...]:
    """Return the groups from bytes made by `bytes_of_groups`."""
    arrays = load(content)
    return groups_of_record(json.loads(arrays.pop("records").tobytes()), arrays)


def _problem(record: Mapping[str, Any]) -> Problem:
    turns = tuple((role, text) for role, text in record.get("turns", ()))
    return Problem(**{**record, "turns": turns})


def _group_record(group: RolloutGroup) -> dict[str, Any]:
    return {
        "problem": asdict(group.problem),
        "num_prompt_tokens": len(group.prompt_token_ids),
        "rollouts": [
            {
                "sample_index": rollout.sample_index,
                "reward": rollout.reward,
                **({"parts": rollout.parts} if rollout.parts else {}),
                "verdict": asdict(rollout.verdict),
                "num_tokens": len(rollout.completion.token_ids),
                "text": rollout.completion.text,
                "finish_reason": rollout.completion.finish_reason,
                "weight_version": rollout.completion.weight_version,
                "stored_reward": rollout.completion.stored_reward,
                "spans": rollout.completion.spans,
            }
            for rollout in group.rollouts
        ],
    }


def _rollout(record: Mapping[str, Any], token_ids: TokenIds, logprobs: Logprobs, own: OwnTokens) -> Rollout:
    verdict = record["verdict"]
    return Rollout(
        sample_index=record["sample_index"],
        completion=Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=record["text"],
            finish_reason=FinishReason(record["finish_reason"]),
            weight_version=record["weight_version"],
            stored_reward=record["stored_reward"],
            own=None if own.all() else own,
            spans=tuple((version, first, end) for version, first, end in record.get("spans", ())),
        ),
        verdict=Verdict(**{**verdict, "kind": VerdictKind(verdict["kind"])}),
        reward=record["reward"],
        parts={name: (value, weight) for name, (value, weight) in record.get("parts", {}).items()},
    )


def _own(completion: Completion) -> OwnTokens:
    return np.ones(len(completion.token_ids), np.bool_) if completion.own is None else completion.own


def _joined(arrays: Sequence[np.ndarray[Any, Any]], dtype: type) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)
