"""Run directories as tests want them, by the writer that training uses; and what is recorded in them."""

from __future__ import annotations

import json

import numpy as np

from atrium.base.records import (
    Completion,
    EvaluatedSample,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    Verdict,
    VerdictKind,
)
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState


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


def write_run(
    folder,
    *,
    num_steps,
    metrics,
    evaluations,
    first=1,
    last=None,
    rollouts=None,
    ratios=None,
    rollouts_every_num_steps=10,
):
    """Record steps `first` to `last`; the writer, which is open.

    `metrics` gives a step's metrics, `ratios` its histogram, `rollouts` its groups and traces, and
    `evaluations` its results, those before training for step 0.
    """
    writer = RunFolderWriter(folder, rollouts_every_num_steps=rollouts_every_num_steps)
    writer.begin(step=first - 1, num_steps=num_steps)
    for step in range(first if first > 1 else 0, (num_steps if last is None else last) + 1):
        if step:
            writer.step(step, metrics(step))
            if ratios is not None:
                writer.ratios(step, ratios(step))
            if rollouts is not None and writer.wants_rollouts(step):
                writer.rollouts(step, *rollouts(step))
        for result in evaluations(step):
            writer.evaluation(result)
    return writer


def leave(writer, state, error=None):
    """Let the run be in this state, which may be one that only readers conclude: its process is gone."""
    if state not in (RunState.KILLED, RunState.RUNNING):
        writer.end(state, error)
        return
    writer.close()
    if state is RunState.KILLED:
        status = json.loads(writer.folder.status_file.read_text())
        writer.folder.status_file.write_text(json.dumps({**status, "pid": 2**22 + 1}))


def method_settings(name, divergence, **sections):
    """The settings of a run as far as they make a method: one that clips."""
    algorithm = {
        "name": name,
        "advantage": {},
        "surrogate": {"kind": "clip"},
        "reduction": {"kind": "token_mean"},
        "on_policy": {"law": "exact"},
    }
    return {"algorithm": algorithm, "divergence": divergence, "regularizer": {}, **sections}
