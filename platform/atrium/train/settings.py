"""The settings group `optimizer`, and the learning-rate schedule. This module does not import torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.section import Count, CountOrZero, NonNegative, Positive, Rate, Section

OptimizerKind = Literal["adamw", "adamw_8bit", "adamw_bf16"]


class AdamWSettings(Section):
    """AdamW and its schedule over training steps. All updates of a step share one learning rate."""

    kind: OptimizerKind = "adamw"
    """Kind of AdamW: float32 state; state in 8 bits; or weights and state in bfloat16 with compensated
    rounding."""
    learning_rate: Rate
    """Peak learning rate, reached after the warmup steps."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)]
    """Decay rate of the gradient's running mean."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)]
    """Decay rate of the squared gradient's running mean."""
    epsilon: Positive
    """Constant added to the root of the squared gradient's mean."""
    weight_decay: NonNegative
    """Decoupled weight decay, multiplied by the learning rate."""
    num_warmup_steps: CountOrZero
    """Number of training steps over which the learning rate rises linearly to its peak."""
    schedule: Literal["constant", "linear", "cosine"]
    """Schedule of the learning rate after the warm-up: constant, or decreasing to 0 after
    the last step."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1e12)] | None
    """Maximum norm of the gradient; larger gradients are scaled down to it. null disables clipping."""


class OptimizerSettings(AdamWSettings):
    """AdamW, its learning-rate schedule, and the number of updates per batch of rollouts."""

    max_skipped_updates: CountOrZero = 3
    """Maximum number of consecutive updates that may be skipped because their gradient is not finite; one
    more ends the run."""
    num_minibatches: Count
    """Number of updates per pass over a batch of rollouts; must divide num_prompts, since groups stay
    whole."""
    num_epochs: Count
    """Number of passes over a batch of rollouts."""


def learning_rate_at(step: int, settings: AdamWSettings, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then the schedule.

    The schedules `linear` and `cosine` reach 0 one step after `num_steps`.
    """
    warmup = min(1.0, step / settings.num_warmup_steps) if settings.num_warmup_steps else 1.0
    rest = max(1, num_steps - settings.num_warmup_steps)
    done = min(1.0, max(0, step - 1 - settings.num_warmup_steps) / rest)
    match settings.schedule:
        case "constant":
            decay = 1.0
        case "linear":
            decay = 1.0 - done
        case "cosine":
            decay = 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.learning_rate * warmup * decay
