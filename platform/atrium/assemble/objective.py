"""From the configured axes to an `Objective`. Every kind is looked up in its axis's table."""

from __future__ import annotations

from typing import Any

from atrium.config.base import Section
from atrium.config.objective import AlgorithmConfig, DivergenceConfig, RegularizerConfig
from atrium.objective.advantages import Advantage
from atrium.objective.corrections import CORRECTIONS
from atrium.objective.divergences import DIVERGENCES
from atrium.objective.groups import GroupFilter
from atrium.objective.objective import Objective
from atrium.objective.ratios import Ratio
from atrium.objective.reductions import REDUCTIONS
from atrium.objective.references import REFERENCES
from atrium.objective.regularizers import EntropyBonus, KLPenalty
from atrium.objective.surrogates import SURROGATES
from atrium.objective.token_weights import TOKEN_WEIGHTS


def build_objective(
    algorithm: AlgorithmConfig, divergence: DivergenceConfig, regularizer: RegularizerConfig
) -> Objective:
    """The objective that the axes describe."""
    kl, entropy = regularizer.kl, regularizer.entropy
    return Objective(
        advantage=Advantage(**algorithm.advantage.model_dump()),
        gate=Ratio(**algorithm.ratio.gate.model_dump()),
        weight=Ratio(**algorithm.ratio.weight.model_dump()),
        divergence=DIVERGENCES[divergence.kind](**_settings(divergence)),
        surrogate=SURROGATES[algorithm.surrogate.kind](**_settings(algorithm.surrogate, "gradient")),
        gradient=algorithm.surrogate.gradient,
        reduction=REDUCTIONS[algorithm.reduction.kind](**_settings(algorithm.reduction)),
        kl=None if kl is None else KLPenalty(**kl.model_dump()),
        entropy=None if entropy is None else EntropyBonus(**entropy.model_dump()),
        token_weight=TOKEN_WEIGHTS[algorithm.token_weight.kind](**_settings(algorithm.token_weight)),
        correction=CORRECTIONS[algorithm.correction.kind](**_settings(algorithm.correction)),
        group_filter=GroupFilter(**algorithm.group_filter.model_dump()),
        reference=REFERENCES[algorithm.reference.kind](**_settings(algorithm.reference)),
        log_ratio_limit=algorithm.log_ratio_limit,
    )


def _settings(section: Section, *other_axes: str) -> dict[str, Any]:
    """A kind's own settings, without its name and without settings that belong to the whole objective."""
    return section.model_dump(exclude={"kind", *other_axes})
