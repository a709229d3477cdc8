"""The section `algorithm` of a run: a choice on every axis but divergence and regularizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from atrium.base.section import Exponent, Positive, Section
from atrium.method.advantages import Advantage
from atrium.method.combinations import read_corrections
from atrium.method.corrections import Correction, NoCorrection
from atrium.method.groups import GroupFilter
from atrium.method.ratios import Ratios
from atrium.method.reductions import Reduction
from atrium.method.references import NoReference, Reference
from atrium.method.surrogates import Surrogate
from atrium.method.token_weights import AllTokens, TokenWeight


class OnPolicy(Section):
    """What the gradient is when the policy is the behavior policy, compared with A grad log pi."""

    law: Literal["exact", "expectation", "scaled", "differs"]
    """Equal; equal in expectation; equal up to `scale`; or something else, for `reason`."""
    scale: Positive | None = None
    """The factor of a scaled gradient."""
    reason: str | None = None
    """The reason why this method's gradient differs, for readers."""


class Algorithm(Section):
    """One method: a choice on every axis but divergence and regularizer, which are groups of their own."""

    name: str
    """What the method is called: that of its file."""
    advantage: Advantage
    """How good was a completion?"""
    ratio: Ratios = Ratios()
    """Whose probabilities are compared, at which level?"""
    surrogate: Surrogate
    """What happens at the boundary?"""
    token_weight: TokenWeight = AllTokens()
    """Which tokens contribute to the objective, and with which weight?"""
    correction: Annotated[
        Correction, BeforeValidator(read_corrections, json_schema_input_type=Correction | list[Correction])
    ] = NoCorrection()
    """How is a mismatch of engine and trainer repaired? A list of corrections is their product."""
    reduction: Reduction
    """How do tokens become one number?"""
    group_filter: GroupFilter = GroupFilter()
    """Which groups take part in the update?"""
    reference: Reference = NoReference()
    """What is the anchor of a regularizer, and when does it move?"""
    log_ratio_limit: Exponent | None = 20.0
    """Bound on log-ratios that are exponentiated, or null for none."""
    on_policy: OnPolicy
    """What the gradient is on-policy; the tests check it."""

    @property
    def prepares_correction(self) -> bool:
        """Whether a whole minibatch's factors of the correction are needed before its loss."""
        return self.reduction.counts == "kept" or any(step.normalizes for step in self.correction.steps)
