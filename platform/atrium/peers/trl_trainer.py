"""Atrium's methods in TRL: a `GRPOTrainer` that uses Atrium's advantages and loss.

TRL generates a batch of whole groups, shuffles its rows, and divides them into micro-batches, which splits
groups. Advantages are therefore computed before the shuffle, and each row keeps its reward, group and key. If
a method computes values from all rows of an update, they come from an additional pass over the update's
micro-batches, without gradients.

Denominators are TRL's own: the number of tokens, counted in the generation batch (`loss_type="dapo"`, the
default) or in each micro-batch (`"bnpo"`), and the number of rows, including those without tokens.

A completion without any reward (every reward function returned None) is excluded from advantages and loss.
All completions of a group with fewer than two rewarded completions are excluded, too. TRL's denominators
still count these completions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import torch
import trl
from torch import Tensor
from transformers.utils import logging

from atrium.base.errors import ConfigError
from atrium.base.metrics import ABSTAINED_FRAC, Reduction
from atrium.base.seeding import derive_seed
from atrium.method.needs import Use
from atrium.method.objective import LossOutput, MinibatchConstants
from atrium.method.reductions import Totals
from atrium.method.selection import keyed_anew
from atrium.peers.interface import LoadedMethod, Tensors, load_method
from atrium.peers.trainers import TRL, wants

VERSIONS = ("1.16",)
"""Versions of TRL whose trainer has been run with Atrium's loss."""
DECIDED = (
    *("epsilon", "epsilon_high", "delta", "importance_sampling_level", "scale_rewards", "entropy_coef"),
    *("off_policy_mask_threshold", "multi_objective_aggregation", "use_bias_correction_kl"),
    *(
        "top_entropy_quantile",
        "use_adaptive_entropy",
        "sapo_temperature_neg",
        "sapo_temperature_pos",
        "sync_ref_model",
    ),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "vllm_importance_sampling_mode"),
    *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
)
"""Settings of TRL that must keep their defaults, because the method determines their effect."""
_OF_FORWARD = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
logger = logging.get_logger(__name__)


class AtriumGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """A `GRPOTrainer` of TRL that trains with a method of Atrium.

    Parameters
    ----------
    model, reward_funcs, args, rest, named
        TRL's arguments; `args`, a `GRPOConfig`, is required.
    atrium
        The name of a method, or the path of a method file.
    atrium_settings
        Settings of the method as on Atrium's command line, such as `"divergence.delta=0.02"`.

    Raises `ConfigError` with a one-line message, before a model is loaded, for an unsupported version of TRL,
    for a method that TRL cannot run, and for settings of TRL that the method determines.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - TRL's
        reward_funcs: Any = None,  # noqa: ANN401 - TRL's
        args: Any = None,  # noqa: ANN401 - TRL's
        *rest: Any,  # noqa: ANN401 - TRL's
        atrium: str,
        atrium_settings: Sequence[str] = (),
        **named: Any,  # noqa: ANN401 - TRL's
    ) -> None:
        if not trl.__version__.startswith(tuple(f"{version}." for version in VERSIONS)):
            raise ConfigError(
                f"TRL {trl.__version__} is not supported, expected {' or '.join(VERSIONS)}; install a "
                "supported version"
            )
        if args is None:
            raise ConfigError("args is missing; pass TRL's GRPOConfig")
        self.atrium = load_method(atrium, *atrium_settings, max_new_tokens=args.max_completion_length)
        check_fit(self.atrium, args)
        args = copy.copy(args)
        for coefficient in _reference_coefficients(self.atrium)[:1]:
            args.beta = coefficient  # makes TRL load the reference and compute its log-probabilities
        self._prepared: MinibatchConstants | None = None
        self._num_done = 0  # micro-batches of the current update
        super().__init__(model, reward_funcs, args, *rest, **named)

    def _calculate_rewards(self, *inputs: Any) -> Tensor:  # noqa: ANN401 - TRL's
        reward_BF: Tensor = super()._calculate_rewards(*inputs)
        self._reward_BF = reward_BF
        return reward_BF

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch with the method's advantages, and with the reward, group and key of each row."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask_BT = _mask(output)
        first = self.accelerator.process_index * len(mask_BT)
        row_B = first + torch.arange(len(mask_BT), device=mask_BT.device)
        reward_BF = self._reward_BF[first : first + len(mask_BT)]
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        is_rewarded_B = ~reward_BF.isnan().all(dim=1)
        num_rewarded_B = is_rewarded_B.view(-1, group_size).sum(dim=1).repeat_interleave(group_size)
        counts_B = is_rewarded_B & (num_rewarded_B >= min(2, group_size))
        output["atrium_counts"] = counts_B
        output["atrium_reward"] = (reward_BF * self.reward_weights.to(reward_BF.device)).nansum(dim=1)
        output["atrium_group"] = torch.where(counts_B, row_B // group_size, -1 - row_B)
        output["atrium_key"] = keyed_anew(row_B, derive_seed(self.args.seed, "trl", self._step))
        per_reward = self.atrium.method.algorithm.advantage.per_reward
        weights = {f"{place:03}": weight for place, weight in enumerate(self.reward_weights.tolist())}
        output["advantages"] = self.atrium.advantages(
            mask_BT,
            rewarded_B=counts_B,
            rewards=dict(zip(weights, reward_BF.unbind(dim=1), strict=True)) if per_reward else None,
            weights=weights if per_reward else None,
            reward_B=output["atrium_reward"],
            group_B=output["atrium_group"],
            sum_over_ranks=self._sum_over_ranks,
        )
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics[ABSTAINED_FRAC.name].append(self._reward_BF.isnan().all(dim=1).float().mean().item())
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:  # noqa: ANN401 - TRL's
        """Return the micro-batch's share of Atrium's loss. The shares of an update add up to its loss."""
        mask_BT = _counted_mask(inputs)
        logprob_BT, entropy_BT, aux_loss = self._pass(model, inputs)
        tensors = self._tensors(inputs, logprob_BT, entropy_BT)
        if not self.model.training:
            output = self.atrium.loss(logprob_BT, mask_BT, **tensors)
        elif not self._needs_whole_update:
            output = self.atrium.loss(logprob_BT, mask_BT, totals=self._totals(inputs), **tensors)
        else:
            if self._num_done == 0:
                self._prepared = self._prepare(model)
            assert self._prepared is not None
            rows = torch.arange(len(mask_BT), device=mask_BT.device) + self._num_done * len(mask_BT)
            output = self.atrium.loss(logprob_BT, mask_BT, prepared=self._prepared.select(rows), **tensors)
        if self.model.training:
            self._num_done = 0 if self.accelerator.sync_gradients else self._num_done + 1
        self._measure(output)
        loss = output.loss
        if aux_loss is not None:
            steps = self.current_gradient_accumulation_steps if self.model.training else 1
            loss = loss + self.router_aux_loss_coef * aux_loss / steps
        return loss

    @property
    def _needs_whole_update(self) -> bool:
        return self.atrium.needs.prepare_pass or self.atrium.needs.whole_groups

    def _prepare(self, model: Any) -> MinibatchConstants:  # noqa: ANN401 - TRL's
        """Return the values that the update's micro-batches share, computed in a pass without gradients."""
        begin = self._step % self.args.steps_per_generation
        parts = self._buffered_inputs[begin : begin + self.current_gradient_accumulation_steps]
        with torch.no_grad():
            passes = [self._pass(model, part) for part in parts]
        logprob_BT = torch.cat([logprob_BT for logprob_BT, _, _ in passes])
        entropy_BT = torch.cat([entropy_BT for _, entropy_BT, _ in passes])
        joined = {
            key: torch.cat([part[key] for part in parts])
            for key, value in parts[0].items()
            if isinstance(value, Tensor) and value.dim() > 0 and key not in _OF_FORWARD
        }
        totals = [self._totals(part) for part in parts]
        tokens = [torch.as_tensor(one.tokens).expand(len(_mask(parts[0]))) for one in totals]
        return self.atrium.prepare(
            logprob_BT,
            _counted_mask(joined),
            totals=replace(totals[0], tokens=torch.cat(tokens)),
            sum_over_ranks=self._sum_over_ranks,
            **self._tensors(joined, logprob_BT, entropy_BT),
        )

    def _pass(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: ANN401
        """Return the policy's log-probabilities and entropies [B, T], and the auxiliary router loss.

        The third value is None unless TRL adds the auxiliary loss of a mixture-of-experts router.
        """
        found: tuple[Tensor, Tensor, Tensor | None] = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in _OF_FORWARD},
        )
        return found

    def _tensors(self, inputs: Mapping[str, Any], logprob_BT: Tensor, entropy_BT: Tensor) -> Tensors:
        """Return TRL's tensors under Atrium's names.

        Without vLLM, the trained model itself samples, so its log-probabilities replace those of the engine.
        The same applies to tokens for which vLLM reports no log-probability.
        """
        old_BT = inputs.get("old_per_token_logps")
        own_BT = logprob_BT.detach() if old_BT is None else old_BT
        rollout_BT = inputs.get("sampling_per_token_logps", own_BT)
        update = self._step // self.args.gradient_accumulation_steps
        tensors: Tensors = {
            "advantage_BT": inputs["advantages"],
            "reward_B": inputs["atrium_reward"],
            "group_B": inputs["atrium_group"],
            "key_B": keyed_anew(inputs["atrium_key"], derive_seed(self.args.seed, "update", update)),
            "rollout_logprob_BT": torch.where(rollout_BT.isnan(), own_BT, rollout_BT),
            "entropy_BT": entropy_BT,
        }
        if old_BT is not None:
            tensors["old_logprob_BT"] = old_BT
        if "ref_per_token_logps" in inputs:
            tensors["reference_logprob_BT"] = inputs["ref_per_token_logps"]
        return tensors

    def _totals(self, inputs: Mapping[str, Any]) -> Totals:
        """Return one process's share of TRL's denominators of an update.

        The denominators are not summed over processes, since TRL averages gradients over processes.
        """
        steps, mask_BT = self.current_gradient_accumulation_steps, _mask(inputs)
        rows = len(mask_BT) * steps
        if self.args.loss_type == "bnpo":
            tokens = mask_BT.sum().clamp(min=1) * steps
        else:
            of_generation = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
            tokens = of_generation * steps / self.args.steps_per_generation
        return Totals(tokens=tokens, rows=rows, groups=rows / self.num_generations)

    def _sum_over_ranks(self, tensor: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return summed

    def _measure(self, output: LossOutput) -> None:
        """Add the means that Atrium measures to TRL's metrics, under Atrium's names."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for quantity, (total, count) in output.sums.items():
            if quantity.reduction is Reduction.MEAN:
                both = self._sum_over_ranks(torch.stack([total.double(), count.double()]))
                metrics[quantity.name].append((both[0] / both[1].clamp(min=1.0)).item())


def check_fit(method: LoadedMethod, args: Any) -> None:  # noqa: ANN401 - a GRPOConfig
    """Raise `ConfigError` if TRL cannot train the method with the settings in `args`.

    Logs a warning for each setting that may not have the expected effect (`Method.notes`), and for a group
    filter, which TRL does not apply.
    """
    TRL.check(method.method)
    defaults = {field.name: field.default for field in fields(args) if field.default is not MISSING}
    for name in DECIDED:
        if name in defaults and getattr(args, name) != defaults[name]:
            raise ConfigError(
                f"{name}={getattr(args, name)} has no effect in GRPOConfig, since {method.name} "
                "determines it; remove it, and put settings of the method into atrium_settings"
            )
    if args.loss_type not in ("dapo", "bnpo"):
        raise ConfigError(
            f"loss_type={args.loss_type} cannot be used, since {method.name} has its own loss; use dapo "
            "to count tokens over the generation batch, or bnpo to count them in each micro-batch"
        )
    if args.beta != 0.0 and _reference_coefficients(method) != [args.beta]:
        raise ConfigError(
            f"beta={args.beta} cannot be used, since {method.name} determines the KL penalty itself; "
            "remove beta"
        )
    _check_batches(method, args)
    if "both" in wants(method.method) and not (args.use_vllm and args.vllm_importance_sampling_correction):
        raise ConfigError(
            f"{method.name} requires the log-probabilities of both the engine and the trainer; choose "
            "use_vllm=True with vllm_importance_sampling_correction=True"
        )
    updates = max(1, args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps)
    use = Use(num_updates_per_batch=updates, group_size=args.num_generations, behavior_logprobs="recompute")
    method.method.check(use)
    for note in method.method.notes(use):
        logger.warning("%s: %s", method.name, note)
    if method.method.algorithm.group_filter.kind != "keep":
        logger.warning("%s: TRL filters no groups; those with equal rewards stay in the batch", method.name)


def _reference_coefficients(method: LoadedMethod) -> list[float]:
    """Return the coefficients of the KL penalties against a reference policy."""
    return [kl.coefficient for kl in method.method.regularizer.penalties if kl.anchor == "reference"]


def _check_batches(method: LoadedMethod, args: Any) -> None:  # noqa: ANN401 - a GRPOConfig
    accumulated, generated = args.gradient_accumulation_steps, args.steps_per_generation
    rows = args.per_device_train_batch_size * generated
    if rows % args.num_generations != 0:
        raise ConfigError(
            "per_device_train_batch_size x steps_per_generation must be a multiple of "
            f"num_generations={args.num_generations}, so that each process has whole groups, got {rows}"
        )
    if method.needs.whole_groups and generated != accumulated:
        raise ConfigError(
            f"{method.name} requires whole groups in an update, but TRL shuffles a generation batch; "
            f"choose steps_per_generation={accumulated}, the value of gradient_accumulation_steps"
        )
    if method.needs.prepare_pass and generated % accumulated != 0:
        raise ConfigError(
            f"{method.name} requires all rows of an update before its loss; choose steps_per_generation "
            f"as a multiple of gradient_accumulation_steps={accumulated}"
        )


def _counted_mask(inputs: Mapping[str, Any]) -> Tensor:
    """Return the result of `_mask`, with 0 in rows that are excluded from the update."""
    counts_B: Tensor = inputs["atrium_counts"]
    return _mask(inputs) * counts_B[:, None]


def _mask(inputs: Mapping[str, Any]) -> Tensor:
    """Return a mask [B, T] that is 1 at tokens of completions, except for tokens written by tools."""
    mask_BT: Tensor = inputs["completion_mask"]
    return mask_BT if "tool_mask" not in inputs else mask_BT * inputs["tool_mask"]
