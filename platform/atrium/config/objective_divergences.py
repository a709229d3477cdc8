"""The configuration of divergences: one frozen model per kind, with its budget and its range.

Which formula a kind stands for is said in `atrium.objective.divergences`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.config.base import Section

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class NoDivergenceConfig(Section):
    """No trust region."""

    kind: Literal["none"]


class BudgetDivergenceConfig(Section):
    """A divergence that is a function of the ratio alone, with one budget."""

    kind: Literal[
        "ratio",
        "k1",
        "k1_signed",
        "k2",
        "kl3",
        "kl3_reversed",
        "chi2",
        "hellinger",
        "jensen_shannon",
        "total_variation",
    ]
    delta: Annotated[float, Field(gt=0.0, le=100.0)]
    """The budget."""


class AlphaDivergenceConfig(Section):
    """The alpha family."""

    kind: Literal["alpha"]
    delta: Annotated[float, Field(gt=0.0, le=100.0)]
    alpha: Annotated[float, Field(ge=-10.0, le=10.0)]


class AsymmetricRatioConfig(Section):
    """Clip-higher: 1 - epsilon_low <= w <= 1 + epsilon_high."""

    kind: Literal["asymmetric_ratio"]
    epsilon_low: Positive
    epsilon_high: Positive


class WindowConfig(Section):
    """A point of the (l, u) plane."""

    kind: Literal["window"]
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    upper: Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class BinaryTotalVariationConfig(Section):
    """DPPO-Binary-TV."""

    kind: Literal["binary_total_variation"]
    delta_low: Share
    delta_high: Share


class BinaryKLConfig(Section):
    """DPPO-Binary-KL."""

    kind: Literal["binary_kl"]
    delta: Positive


class DynamicClipConfig(Section):
    """DCPO."""

    kind: Literal["dynamic_clip"]
    epsilon_low: Positive
    epsilon_high: Positive
    cap: Annotated[float, Field(gt=1.0)]


class BalancedWindowConfig(Section):
    """BAPO: bounds that widen until positive advantages have their share."""

    kind: Literal["balanced_window"]
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    upper: Annotated[float, Field(ge=1.0)]
    """Where the search starts."""
    lower_max: Annotated[float, Field(ge=0.0, le=1.0)]
    upper_max: Annotated[float, Field(ge=1.0)]
    """Where it ends."""
    step: Annotated[float, Field(ge=1e-3)]
    """What a bound moves by at a time."""
    positive_frac: Annotated[float, Field(ge=0.0, le=1.0)]
    """The share of the signal at which the search stops."""


class SequenceMeanConfig(Section):
    """A completion's mean over tokens of k1, k2 or k3, within a budget."""

    kind: Literal["sequence_mean"]
    estimator: Literal["k1", "k2", "k3"]
    delta: Positive


class StateDivergenceConfig(Section):
    """KL or total variation of the next-token distribution, over the vocabulary."""

    kind: Literal["state_kl", "state_total_variation"]
    delta: Positive


class TopKDivergenceConfig(Section):
    """The same over the most likely tokens and a bucket of the rest."""

    kind: Literal["top_k_kl", "top_k_total_variation"]
    delta: Positive
    top_k: Annotated[int, Field(ge=1)]
    """How many tokens are told apart."""


DivergenceConfig = Annotated[
    NoDivergenceConfig
    | BudgetDivergenceConfig
    | AlphaDivergenceConfig
    | AsymmetricRatioConfig
    | WindowConfig
    | BinaryTotalVariationConfig
    | BinaryKLConfig
    | DynamicClipConfig
    | BalancedWindowConfig
    | SequenceMeanConfig
    | StateDivergenceConfig
    | TopKDivergenceConfig,
    Field(discriminator="kind"),
]
