"""A method: a choice on every axis, what it needs, and what it is the same as."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from atrium.method.advantages import Advantage
from atrium.method.corrections import Correction, NoCorrection
from atrium.method.divergences import Divergence
from atrium.method.groups import GroupFilter
from atrium.method.needs import NOTHING, Needs
from atrium.method.ratios import Ratios
from atrium.method.reductions import Reduction
from atrium.method.references import NoReference, Reference
from atrium.method.regularizers import Regularizer
from atrium.method.surrogates import Surrogate
from atrium.method.token_weights import AllTokens, TokenWeight
from atrium.section import Positive, Section


class OnPolicy(Section):
    """What the gradient is when the policy is the behavior policy, compared with A grad log pi."""

    law: Literal["exact", "expectation", "scaled", "differs"]
    """Equal; equal in expectation; equal up to `scale`; or something else, for `reason`."""
    scale: Positive | None = None
    """The factor of a scaled gradient."""
    reason: str | None = None
    """Why the gradient differs."""


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
    """Which tokens count?"""
    correction: Correction = NoCorrection()
    """How is a mismatch of engine and trainer repaired?"""
    reduction: Reduction
    """How do tokens become one number?"""
    group_filter: GroupFilter = GroupFilter()
    """Which groups train?"""
    reference: Reference = NoReference()
    """What is the anchor of a regularizer, and when does it move?"""
    log_ratio_limit: Positive | None = 20.0
    """Bound on log-ratios that are exponentiated, or null for none."""
    on_policy: OnPolicy
    """What the gradient is on-policy; the tests check it."""


@dataclass(frozen=True)
class Method:
    """The three sections of a run that together are its method."""

    algorithm: Algorithm
    divergence: Divergence
    regularizer: Regularizer = Regularizer()

    def with_parts(self, **parts: Section) -> Method:
        """The same method with other choices on axes of its algorithm, by their names."""
        return replace(self, algorithm=self.algorithm.model_copy(update=parts))

    @property
    def needs(self) -> Needs:
        """The union of what the parts need."""
        chosen = self.algorithm
        parts = [part.needs for part in (self.regularizer.kl, self.regularizer.entropy) if part is not None]
        parts += [self.divergence.needs, chosen.surrogate.needs, chosen.reduction.needs]
        parts += [chosen.token_weight.needs, chosen.correction.needs]
        return reduce(Needs.__or__, parts, NOTHING)
