"""Atrium's methods in verl.

Importing this module registers a policy loss and an advantage estimator for each method, both with the name
`atrium/METHOD`. verl imports the module in every worker if the environment variable
`VERL_USE_EXTERNAL_MODULES=atrium.peers.verl_losses` is set. Since verl's configuration has no place for
Atrium's settings, the variable `ATRIUM_VERL_SETTINGS` names a YAML file with a list of settings for each
method, such as `atr: [divergence.delta=0.02]`. If a key is the path of a method file instead of a name, the
method in this file is registered as `atrium/` and the file's name without its extension.

verl passes only three tensors of its batch to a registered loss. Importing this module therefore also wraps
verl's `ppo_loss`, which calls the registered loss, so that the loss can read the log-probabilities of the
engine and of the reference policy.

verl itself adds an entropy bonus and a KL penalty against the reference policy, and filters groups.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.workers.utils import losses

from atrium.base import metrics
from atrium.base.errors import ConfigError
from atrium.config.files import conf_folder, read_groups, read_yaml
from atrium.method.objective import LossOutput
from atrium.method.reductions import (
    Reduction,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    TokenMean,
    Totals,
    count_totals,
)
from atrium.peers.interface import LoadedMethod, Tensors, load_method
from atrium.peers.trainers import VERL, wants

VERSIONS = ("0.9",)
"""Versions of verl whose losses have been compared with Atrium's."""
SETTINGS_VARIABLE = "ATRIUM_VERL_SETTINGS"
_MICRO_BATCH: ContextVar[Any] = ContextVar("micro_batch", default=None)
"""All tensors of the micro-batch whose loss verl is computing; a registered loss receives only three."""
_OF_BATCH = {
    "rollout": (
        "rollout_logprob_BT",
        "rollout_log_probs",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    "reference": (
        "reference_logprob_BT",
        "ref_log_prob",
        "actor_rollout_ref.actor.use_kl_loss=True kl_loss_coef=0",
    ),
}
"""Additional inputs, by key of `WANTS`: Atrium's name, the name in verl's batch, and verl's setting that adds
the tensor to the batch."""


@dataclass(frozen=True)
class RegisteredMethod:
    """A method of Atrium with verl's interface: a policy loss and an advantage estimator."""

    source: str
    settings: tuple[str, ...] = ()

    def load(self, max_new_tokens: int) -> LoadedMethod:
        """Load the method. Raise `ConfigError` if it needs inputs that verl does not provide."""
        return _load(self.source, self.settings, max_new_tokens)

    def loss(
        self,
        *,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any,  # noqa: ANN401 - an ActorConfig
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the micro-batch's share of the actor's loss, and the metrics of clipping and KL.

        The denominators come from `config.global_batch_info`. `rollout_is_weights` are multiplied into the
        advantages. Raises `ConfigError` if `loss_agg_mode` is not the method's reduction, or if the method
        needs inputs that verl or its batch lacks.
        """
        batch = config.global_batch_info
        width = int(batch.get("loss_scale_factor") or response_mask.shape[1])
        method = self.load(width)
        _check_reduction(method, loss_agg_mode, width)
        if rollout_is_weights is not None:
            advantages = advantages * rollout_is_weights  # surrogates are proportional to the advantage
        output = method.loss(
            log_prob,
            response_mask,
            totals=_totals(response_mask, batch),
            **(Tensors(old_logprob_BT=old_log_prob, advantage_BT=advantages) | _of_batch(method, log_prob)),
        )
        return output.loss * batch.get("dp_size", 1), _measured(output)

    def advantages(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[object],
        **_: Any,  # noqa: ANN401 - what other estimators of verl take
    ) -> tuple[Tensor, Tensor]:
        """Return a batch's advantages [B, T] twice, since verl expects advantages and returns.

        Rows with equal `index` form a group.
        """
        group_B = np.unique(np.asarray(index), return_inverse=True)[1]
        advantage_BT = self.load(response_mask.shape[1]).advantages(
            response_mask,
            reward_B=(token_level_rewards * response_mask).sum(dim=1),
            group_B=torch.as_tensor(group_B, device=response_mask.device),
        )
        return advantage_BT, advantage_BT


@cache
def _load(source: str, settings: tuple[str, ...], max_new_tokens: int) -> LoadedMethod:
    method = load_method(source, *settings, max_new_tokens=max_new_tokens)
    VERL.check(method.method)
    return method


def _of_batch(method: LoadedMethod, log_prob: Tensor) -> Tensors:
    """Return the log-probabilities of the engine and of the reference policy, if the method needs them.

    They are read from verl's current micro-batch, and get the dtype and device of `log_prob`. Raises
    `ConfigError` if the micro-batch lacks them.
    """
    batch = _MICRO_BATCH.get()
    found: dict[str, Tensor] = {}
    wanted = {"rollout" if want == "both" else want for want in wants(method.method)}
    for want in _OF_BATCH.keys() & wanted:
        ours, theirs, setting = _OF_BATCH[want]
        if batch is None or theirs not in batch:
            raise ConfigError(
                f"{method.name} requires {theirs}, which verl's batch does not contain; set {setting}"
            )
        found[ours] = batch.select("response_mask", theirs).to_padded_tensor()[theirs].to(log_prob)
    return found  # type: ignore[return-value]


def _keep_micro_batch(ppo_loss: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's `ppo_loss` so that registered losses can read all tensors of the micro-batch."""

    @functools.wraps(ppo_loss)
    def kept(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:  # noqa: ANN401
        token = _MICRO_BATCH.set(data)
        try:
            return ppo_loss(config, model_output, data, dp_group)
        finally:
            _MICRO_BATCH.reset(token)

    return kept


def _wrap_ppo_loss() -> None:
    """Replace verl's `ppo_loss` with a wrapper that lets registered losses read the whole micro-batch.

    The function is replaced in the module that defines it and in the two modules that import it by name, if
    they are already loaded.
    """
    own = losses.ppo_loss
    wrapped = _keep_micro_batch(own)
    for name in ("workers.utils.losses", "workers.engine_workers", "trainer.distillation.losses"):
        module = sys.modules.get(f"verl.{name}")
        if getattr(module, "ppo_loss", None) is own:
            module.ppo_loss = wrapped  # type: ignore[union-attr]


def register() -> None:
    """Register every shipped method, and every method file that the settings file names.

    Raises `ConfigError` for an unsupported version of verl, an error in the settings file, or a method in it
    that verl cannot run.
    """
    if not verl.__version__.startswith(tuple(f"{version}." for version in VERSIONS)):
        raise ConfigError(
            f"verl {verl.__version__} is not supported, expected {' or '.join(VERSIONS)}; install a "
            "supported version"
        )
    typed = _typed_settings()
    _wrap_ppo_loss()
    for source, settings in typed.items():
        RegisteredMethod(source, settings).load(max_new_tokens=1)  # raises errors before training begins
    for source in dict.fromkeys((*read_groups(conf_folder())["algorithm"], *typed)):
        one = RegisteredMethod(source, typed.get(source, ()))
        name = f"atrium/{Path(source).stem}"
        register_policy_loss(name)(one.loss)
        register_adv_est(name)(one.advantages)


def _typed_settings() -> dict[str, tuple[str, ...]]:
    named = os.environ.get(SETTINGS_VARIABLE)
    if not named:
        return {}
    content = read_yaml(Path(named), f"{SETTINGS_VARIABLE}={named}")
    if not isinstance(content, Mapping) or not all(isinstance(lines, list) for lines in content.values()):
        raise ConfigError(
            f"{SETTINGS_VARIABLE} must contain a list of settings per method, such as `atr: "
            f"[divergence.delta=0.02]`, got {named}"
        )
    return {str(source): tuple(map(str, lines)) for source, lines in content.items()}


_REDUCTIONS: Mapping[str, Callable[[int], Reduction]] = {
    "token-mean": lambda _: TokenMean(),
    "seq-mean-token-sum": lambda _: SequenceMeanTokenSum(),
    "seq-mean-token-sum-norm": lambda width: SequenceMeanTokenSum(constant=float(width)),
    "seq-mean-token-mean": lambda _: SequenceMeanTokenMean(),
}


def _check_reduction(method: LoadedMethod, mode: str, width: int) -> None:
    own = method.method.algorithm.reduction
    modes = [name for name, reduction in _REDUCTIONS.items() if reduction(width) == own]
    if mode not in modes:
        raise ConfigError(
            f"loss_agg_mode={mode} does not match {method.name}, whose reduction is {own.kind}; choose "
            f"loss_agg_mode={(modes[0] if modes else 'token-mean')}, or another reduction in "
            f"{SETTINGS_VARIABLE}"
        )


def _totals(mask_BT: Tensor, batch: Mapping[str, Any]) -> Totals:
    """Return the denominators that verl provides for the update.

    Denominators that verl does not provide are counted in the micro-batch.
    """
    own = count_totals(mask_BT.sum(dim=1), torch.arange(len(mask_BT), device=mask_BT.device))
    tokens, rows = batch.get("batch_num_tokens"), batch.get("global_batch_size")
    return Totals(
        tokens=own.tokens if tokens is None else tokens,
        rows=own.rows if rows is None else rows,
        groups=own.groups,
    )


def _measured(output: LossOutput) -> dict[str, float]:
    """Return the shares of tokens whose gradient is clipped, and the KL (k1), under verl's names."""
    means = output.means()
    return {
        "actor/pg_clipfrac": (means[metrics.CLIP_HIGH_FRAC] + means[metrics.CLIP_LOW_FRAC]).item(),
        "actor/pg_clipfrac_lower": means[metrics.CLIP_RUNAWAY_FRAC].item(),
        "actor/ppo_kl": means[metrics.KL_K1].item(),
    }


register()
