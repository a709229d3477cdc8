"""How a mismatch between the engine's and the trainer's distribution is repaired: a factor on every token.

The classes of `atrium.method.corrections` say what each of them does; they are executed here.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from atrium.method.batch import neutral, row_mean
from atrium.method.corrections import (
    Correction,
    MaskedImportance,
    NoCorrection,
    SequenceRejection,
    TruncatedImportance,
)
from atrium.method.ratios import at_level
from atrium.objective.divergences import estimate_divergence


@singledispatch
def correct(correction: Correction, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
    """The factor [B, T], or None for 1 everywhere. `log_mismatch_BT` is the log-ratio that it is of."""
    raise TypeError(f"{type(correction).__name__} is executed nowhere: register a function with `correct`")


@correct.register
def _(correction: NoCorrection, log_mismatch_BT: Tensor, mask_BT: Tensor) -> None:
    return None


@correct.register
def _(correction: TruncatedImportance, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return _ratio(log_mismatch_BT, mask_BT, correction).clamp(max=correction.cap)


@correct.register
def _(correction: MaskedImportance, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor:
    ratio_BT = _ratio(log_mismatch_BT, mask_BT, correction)
    inside_BT = (ratio_BT >= correction.lower) & (ratio_BT <= correction.upper)
    return torch.where(inside_BT, ratio_BT if correction.keep_weight else 1.0, 0.0)


@correct.register
def _(correction: SequenceRejection, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor:
    log_mismatch_BT = neutral(log_mismatch_BT, mask_BT)
    estimate_BT = estimate_divergence(correction.estimator, log_mismatch_BT)
    kept_B = row_mean(estimate_BT, mask_BT) <= correction.bound
    if correction.over == "maximum":
        kept_B = (neutral(estimate_BT, mask_BT) <= correction.bound).all(dim=1)
    return kept_B[:, None].to(log_mismatch_BT.dtype).expand_as(log_mismatch_BT)


def _ratio(
    log_mismatch_BT: Tensor, mask_BT: Tensor, correction: TruncatedImportance | MaskedImportance
) -> Tensor:
    return at_level(correction.level, neutral(log_mismatch_BT, mask_BT), mask_BT).exp()
