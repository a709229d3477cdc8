"""The mismatch of engine and trainer in log-probabilities, and the staleness of samples in updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from atrium.base import metrics
from atrium.base.errors import EngineError
from atrium.base.records import RolloutGroup
from atrium.engines.collate import RolloutRows
from atrium.method.batch import neutral
from atrium.method.diagnostics import Sums
from atrium.train.measure.measurements import Measurements
from atrium.train.update.forward import PolicyForward

_ROUNDING, _HALF_ROUNDING = 1e-3, 0.1
"""Largest mean difference of a row from the whole model due to rounding: single, half precision, in nats."""


def mismatch_sums(logprob_BT: Tensor, rollout_logprob_BT: Tensor, mask_BT: Tensor) -> Sums:
    """Return sums that measure how trainer and engine log-probabilities differ at the tokens in the mask."""
    gap_BT = neutral(logprob_BT - rollout_logprob_BT, mask_BT).double()
    count = mask_BT.sum()
    return {
        metrics.MISMATCH_MEAN: (gap_BT.abs().sum(), count),
        metrics.MISMATCH_MAX: (gap_BT.abs().max(), count),
        metrics.MISMATCH_KL: ((torch.expm1(gap_BT) - gap_BT).sum(), count),
    }


def measure_mismatch(
    forward: PolicyForward, rows: RolloutRows, micro_batch_tokens: int, measurements: Measurements
) -> None:
    """Add the mismatch of engine and trainer log-probabilities, measured on one micro-batch of the rows."""
    part = forward.split(rows, np.arange(len(rows.num_tokens_B)), micro_batch_tokens)[0]
    some = rows.select(part)
    with torch.no_grad():
        logprob_BT = forward(some, entropy="none").logprob_BT
    measurements.add_sums(mismatch_sums(logprob_BT, some.batch.rollout_logprob_BT, some.batch.mask_BT))


def check_mismatch(
    measured: Mapping[str, float], bound: float | None, step: int, find_cause: Callable[[float, float], str]
) -> None:
    """Raise `EngineError` if engine and trainer differ by more than `bound` nats on average.

    Nothing is checked if `bound` is None or the mismatch was not measured. `find_cause` receives the mean
    difference and the bound, and returns a phrase that states the cause, for the error message (see
    `mismatch_cause`).
    """
    mean = measured.get(metrics.MISMATCH_MEAN.name)
    if bound is None or mean is None or mean <= bound:
        return
    raise EngineError(
        f"step {step}: the log-probabilities of engine and trainer for the engine's samples differ by "
        f"{mean:.3g} nats on average (at most {measured[metrics.MISMATCH_MAX.name]:.3g}), more than "
        f"rollout.max_mismatch={bound:g}; {find_cause(mean, bound)}; the last checkpoint is intact"
    )


def mismatch_cause(
    forward: PolicyForward, rows: RolloutRows, micro_batch_tokens: int, mean: float, bound: float
) -> str:
    """Return a phrase that names the likely cause of a mismatch (engine, trainer or rounding) and a remedy.

    `mean` is the mean difference of engine and trainer in nats. The weights may have been updated since it
    was measured. Therefore the trainer's log-probabilities of one row are computed again under the current
    weights, and are compared with those of the model's own, unpacked forward pass. If these two differ by at
    most `bound` nats on average, the engine is the likely cause.
    """
    some = rows.select(forward.split(rows, np.arange(len(rows.num_tokens_B)), micro_batch_tokens)[0])
    with torch.no_grad():
        trainer_BT = forward(some, entropy="none").logprob_BT
        mask_BT, engine_BT = some.batch.mask_BT, some.batch.rollout_logprob_BT
        gap_BT = neutral(trainer_BT - engine_BT, mask_BT).abs()
        worst = int((gap_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)).argmax())
        whole_T = forward.whole_logprobs(some.select(np.array([worst])))
    mask_T = mask_BT[worst, : len(whole_T)]
    trainer = float((trainer_BT[worst, : len(whole_T)] - whole_T)[mask_T].abs().mean())
    found = f"on a single row, the whole model differs from the trainer by {trainer:.3g} nats"
    is_half = forward.dtype.itemsize == 2
    rounding = _HALF_ROUNDING if is_half else _ROUNDING
    if bound < trainer < rounding and mean < rounding:
        remedy = "compute in float32, or " if is_half else ""
        return f"{found}, which is rounding: {remedy}raise rollout.max_mismatch above it"
    if trainer <= bound:
        return (
            f"{found}, so the engine disagrees: it samples from other weights, in another precision or with "
            "another mask; compare compute.dtype and rollout.kv_cache_dtype, or try "
            "rollout.engine=transformers"
        )
    if forward.packing:
        return f"{found}, so the trainer's packed rows disagree: start a new run with compute.packing=false"
    return (
        f"{found}, so the trainer disagrees: a row's values depend on the other rows; choose another model "
        "or shorter rows"
    )


def staleness(groups: Sequence[RolloutGroup], weight_version: int) -> tuple[float, int]:
    """Return the number of updates since sampling, summed over completions, and the number of completions.

    Stored completions are left out.
    """
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    ages = [weight_version - one.weight_version for one in completions if not one.is_stored]
    return sum(ages), len(ages)
