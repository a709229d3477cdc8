"""What tests record in run folders: problems that are sums, answers to them, and groups of rollouts."""

from __future__ import annotations

import numpy as np

from atrium.records import (
    Completion,
    EvaluatedSample,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    Verdict,
    VerdictKind,
)


def sum_problem(index, name=None, **metadata):
    """The problem `index + 1 =`."""
    return Problem(
        problem_id=name or f"p{index}", question=f"{index}+1=", answer=str(index + 1), metadata=metadata
    )


def evaluated_sample(problem, index=0, *, is_correct, **changes):
    """An answer of an evaluation, of seven tokens where `changes` do not say otherwise."""
    settings = {
        "text": "\\boxed{5}",
        "verdict": VerdictKind.CORRECT if is_correct else VerdictKind.INCORRECT,
        "reason": "compared",
        "extracted": "5",
        "num_tokens": 7,
        "finish_reason": FinishReason.STOP,
        "logprob_sum": -1.25,
    }
    return EvaluatedSample(
        problem=problem, sample_index=index, is_correct=bool(is_correct), **(settings | changes)
    )


def group_of_two(problem, rng, *, num_tokens, text, weight_version=0):
    """Two rollouts of a problem: one that is right, and one that is cut off without an answer."""

    def rollout(index):
        is_correct = index == 0
        return Rollout(
            sample_index=index,
            completion=Completion(
                token_ids=rng.integers(0, 20, num_tokens).astype(np.int32),
                logprobs=-rng.random(num_tokens).astype(np.float32),
                text=text,
                finish_reason=FinishReason.STOP if is_correct else FinishReason.LENGTH,
                weight_version=weight_version,
            ),
            verdict=Verdict(
                kind=VerdictKind.CORRECT if is_correct else VerdictKind.NO_ANSWER,
                reason="equal" if is_correct else "no box",
                extracted=problem.answer if is_correct else None,
            ),
            reward=float(is_correct),
        )

    return RolloutGroup(
        problem=problem,
        prompt_token_ids=np.arange(4, dtype=np.int32),
        rollouts=(rollout(0), rollout(1)),
    )
