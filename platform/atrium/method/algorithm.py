"""The `algorithm` section of a run's configuration: every axis except divergence and regularizer."""

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
    """The declared relation of a method's on-policy gradient to the policy gradient A grad log pi.

    The method's file declares this relation, and the tests of Atrium check it.
    """

    law: Literal["exact", "expectation", "scaled", "differs"]
    """Relation of the gradients. `exact`: equal. `expectation`: equal in expectation. `scaled`: equal up to
    the factor `scale`. `differs`: different, because of `reason`."""
    scale: Positive | None = None
    """Factor of a scaled gradient."""
    reason: str | None = None
    """Reason why this method's gradient differs, for readers."""


class Algorithm(Section):
    """A method's choice on every axis except divergence and regularizer, which are separate sections."""

    name: str
    """Name of the method, equal to that of its file."""
    advantage: Advantage
    """Advantage of a completion."""
    ratio: Ratios = Ratios()
    """Policies whose probabilities are compared, and the level of the comparison."""
    surrogate: Surrogate
    """Objective of each token, including its behavior at the boundary of the trust region."""
    token_weight: TokenWeight = AllTokens()
    """Tokens that contribute to the objective, and their weights."""
    correction: Annotated[
        Correction, BeforeValidator(read_corrections, json_schema_input_type=Correction | list[Correction])
    ] = NoCorrection()
    """Correction of a mismatch between engine and trainer. A list of corrections is their product."""
    reduction: Reduction
    """Reduction of the tokens' losses to one number."""
    group_filter: GroupFilter = GroupFilter()
    """Groups that take part in the update."""
    reference: Reference = NoReference()
    """Reference policy of a regularizer, and its updates."""
    log_ratio_limit: Exponent | None = 20.0
    """Largest absolute log-ratio; larger ones are clamped to it before exponentiation. null for no limit."""
    on_policy: OnPolicy
    """Declared on-policy gradient, which the tests of Atrium check."""

    @property
    def prepares_correction(self) -> bool:
        """Whether the correction's factors must be computed for a whole minibatch, before the loss."""
        return self.reduction.counts == "kept" or any(step.normalizes for step in self.correction.steps)
