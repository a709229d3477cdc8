"""The objective of a method as a function of plain tensors, for programs with their own training loop.

Axes: B rows (completions), T completion tokens. `docs/trainers.md` has examples. The module imports torch,
numpy, pydantic and PyYAML, and scipy if a divergence's window needs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from atrium.config.method_files import read_method
from atrium.method.batch import Batch, PolicyTokens, Sum, local_sum
from atrium.method.method import Method
from atrium.method.needs import Needs
from atrium.method.objective import LossOutput, MinibatchConstants, Objective
from atrium.method.reductions import Totals
from atrium.peers.trainers import OWN_LOOP, UNKNOWN_USE


class Tensors(TypedDict, total=False):
    """Tensors, besides the policy's log-probabilities, that a method may need, of shape [B, T] or [B].

    Values at masked positions are ignored and may be NaN.
    """

    advantage_BT: Tensor
    """Advantages, `[B, T]` or one per row `[B]`. If omitted, `reward_B` and `group_B` of the whole update are
    required."""
    reward_B: Tensor
    """One reward per row."""
    group_B: Tensor
    """Whole numbers, equal for completions of the same prompt."""
    old_logprob_BT: Tensor
    """Log-probabilities under the policy at the start of the step, computed by the trainer, for both anchors
    (`behavior` and `proximal`). If omitted, the current policy is used, and every ratio to it is 1."""
    rollout_logprob_BT: Tensor
    """Log-probabilities reported by the engine that sampled."""
    reference_logprob_BT: Tensor
    """Log-probabilities under a regularizer's reference policy."""
    entropy_BT: Tensor
    """The policy's entropy in nats, with its gradient if `needs.entropy` requires it."""
    key_B: Tensor
    """Whole numbers that determine random choices: one per row, different at every update."""


_BY_ROW = ("reward_B", "group_B", "key_B")


def load_method(source: str, *settings: str, max_new_tokens: int | None = None) -> LoadedMethod:
    """Load a method, with `settings` applied.

    `source` is the name of a method, or the path of a YAML file with a method. `max_new_tokens` is the
    maximum length of a completion, by which Dr. GRPO and similar methods divide. Raises `ConfigError` with a
    one-line message for any error in the settings, and for a method that needs what a custom loop cannot
    provide (see `trainers.OWN_LOOP`).

    Examples
    --------
    >>> atr = load_method("atr", "divergence.delta=0.02")
    >>> atr.name, atr.words["window [l, u]"], atr.needs.prepare_pass
    ('atr', '[0.8131, 1.2135]', False)
    """
    method = read_method(source, settings, max_new_tokens=max_new_tokens)
    method.check(UNKNOWN_USE)
    OWN_LOOP.check(method)
    method.divergence.window()  # computed here, so that errors are raised here
    return LoadedMethod(method)


@dataclass(frozen=True)
class LoadedMethod:
    """A method that computes advantages and losses. It has no state: equal tensors give equal results."""

    method: Method

    @property
    def name(self) -> str:
        """The name of the method, such as `grpo`."""
        return self.method.algorithm.name

    @property
    def needs(self) -> Needs:
        """The passes and tensors that the method needs."""
        return self.method.needs

    @property
    def words(self) -> Mapping[str, str]:
        """Short descriptions of the method's choices, by name, such as `surrogate` or `window [l, u]`.

        The description of a neutral choice is empty.
        """
        return self.method.words()

    def advantages(
        self,
        mask_BT: Tensor,
        *,
        rewarded_B: Tensor | None = None,
        rewards: Mapping[str, Tensor] | None = None,
        weights: Mapping[str, float] | None = None,
        sum_over_ranks: Sum = local_sum,
        **tensors: Unpack[Tensors],
    ) -> Tensor:
        """Return the advantages [B, T] of a whole batch of rollouts, from `reward_B` and `group_B`.

        `rewards`, given instead of `reward_B`, maps names to rewards [B]; NaN means that a row has no
        value. `weights` maps the same names to weights, which are 1 by default. Rows without any value, and
        rows where `rewarded_B` is False, have advantage 0 and are excluded from all statistics.

        `sum_over_ranks` adds a tensor over the processes that share the batch. A group must not be split
        over processes, and every process must call this method, even if it has no rewarded row.
        """
        zero_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
        reward_BK, weight_K = _of_weight(rewards, weights or {}, mask_BT)
        if reward_BK is not None:
            tensors["reward_B"] = (reward_BK * weight_K).nansum(dim=1)
            has_value_B = ~reward_BK.isnan().all(dim=1)
            rewarded_B = has_value_B if rewarded_B is None else rewarded_B.bool() & has_value_B
        batch = self._batch(zero_BT, mask_BT, tensors)
        if reward_BK is not None:
            batch = replace(batch, reward_BK=reward_BK, weight_BK=weight_K.expand_as(reward_BK))
        if rewarded_B is not None:
            batch = batch.select(rewarded_B.bool().nonzero()[:, 0])
        advantage_BT = self._scored(batch, tensors, sum_over_ranks).advantage_BT
        assert advantage_BT is not None
        return advantage_BT if rewarded_B is None else zero_BT.index_put((rewarded_B.bool(),), advantage_BT)

    def prepare(
        self,
        logprob_BT: Tensor,
        mask_BT: Tensor,
        *,
        totals: Totals | None = None,
        sum_over_ranks: Sum = local_sum,
        **tensors: Unpack[Tensors],
    ) -> MinibatchConstants:
        """Return the values that all micro-batches of an update share, computed from all rows of the update.

        `loss` calls this method itself if its rows are the whole update. If an update is divided into
        micro-batches, call `prepare` yourself if `needs.prepare_pass` or `needs.whole_groups` is set, or if
        Atrium should count the denominators. `totals` are the caller's own denominators; if they are None,
        Atrium counts them. Raises `ValueError` for missing tensors and wrong shapes, and for `totals` if the
        method's `reduction.counts` is `kept`.
        """
        self._check_given(tensors)
        if totals is not None and self.method.algorithm.reduction.counts == "kept":
            raise ValueError(
                f"totals cannot be given for {self.name}, since they lack the number of tokens that its "
                "correction keeps (algorithm.reduction.counts=kept); remove totals"
            )
        batch = self._batch(logprob_BT, mask_BT, tensors)
        objective = Objective(self.method)
        policy = PolicyTokens(logprob_BT=logprob_BT.detach(), entropy_BT=_detached(tensors.get("entropy_BT")))
        return objective.prepare(
            self._scored(batch, tensors, sum_over_ranks),
            policy if self.needs.prepare_pass else None,
            objective.initial_state(),
            sum_over_ranks,
            totals,
        )

    def loss(
        self,
        logprob_BT: Tensor,
        mask_BT: Tensor,
        *,
        prepared: MinibatchConstants | None = None,
        totals: Totals | None = None,
        **tensors: Unpack[Tensors],
    ) -> LossOutput:
        """Return the rows' share of an update's loss, to be minimized. Shares add up to the total loss.

        Denominators come from `prepared` (for these rows: `prepared.select(rows)`), or from the caller's own
        `totals` of the update. If neither is given, this method counts the denominators, and the rows must be
        the whole update. The gradient flows into `logprob_BT` and, with an entropy bonus, into `entropy_BT`.

        Raises `ValueError` for missing tensors and wrong shapes, for `totals` together with `prepared`, and
        for `totals` alone if `needs.prepare_pass` or `needs.whole_groups` is set, or if the method's
        `reduction.counts` is `kept`.
        """
        if prepared is not None and totals is not None:
            raise ValueError(
                "`prepared` and `totals` must not both be given, since each contains the denominators; "
                "pass only one of them"
            )
        self._check_given(tensors)
        batch = self._scored(self._batch(logprob_BT, mask_BT, tensors), tensors, local_sum)
        if prepared is None:
            if totals is not None and (self.needs.prepare_pass or self.needs.whole_groups):
                raise ValueError(
                    f"{self.name} requires all rows of an update to compute the loss; call `prepare` "
                    "with all rows and your totals, and pass the result as `prepared`"
                )
            prepared = self.prepare(logprob_BT, mask_BT, totals=totals, **tensors)
        policy = PolicyTokens(logprob_BT=logprob_BT, entropy_BT=tensors.get("entropy_BT"))
        return Objective(self.method).loss(batch, policy, prepared)

    def _batch(self, logprob_BT: Tensor, mask_BT: Tensor, tensors: Tensors) -> Batch:
        """Return the tensors as a `Batch`, the objective's input. Raise `ValueError` for wrong shapes."""
        _check_shapes(logprob_BT, mask_BT, tensors)
        mask_BT = mask_BT.bool()
        device, zero_B = mask_BT.device, mask_BT.new_zeros(len(mask_BT), dtype=torch.int64)
        old_BT, rollout_BT = tensors.get("old_logprob_BT"), tensors.get("rollout_logprob_BT")
        advantage_BT = tensors.get("advantage_BT")
        if advantage_BT is not None:
            advantage_BT = advantage_BT[:, None] if advantage_BT.dim() == 1 else advantage_BT
            advantage_BT = torch.where(mask_BT, advantage_BT.to(logprob_BT.dtype), 0.0)
        return Batch(
            mask_BT=mask_BT,
            reward_B=tensors.get("reward_B", zero_B).double(),
            group_B=tensors.get("group_B", torch.arange(len(mask_BT), device=device)).long(),
            sample_key_B=tensors.get("key_B", zero_B).long(),
            rollout_logprob_BT=logprob_BT.detach() if rollout_BT is None else rollout_BT,
            behavior_logprob_BT=old_BT,
            proximal_logprob_BT=old_BT,
            reference_logprob_BT=tensors.get("reference_logprob_BT"),
            advantage_BT=advantage_BT,
            is_trained_B=mask_BT.any(dim=1),
        )

    def _scored(self, batch: Batch, tensors: Tensors, sum_over_ranks: Sum) -> Batch:
        """Return the batch with its advantages, which are computed from rewards and groups if it has none.

        Raises `ValueError` if the advantages must be computed but rewards or groups are missing.
        """
        if batch.advantage_BT is not None:
            return batch
        for name in ("reward_B", "group_B"):
            if name not in tensors:
                raise ValueError(f"{name} is missing; pass advantage_BT, or reward_B and group_B")
        return Objective(self.method).with_advantages(batch, sum_over_ranks)

    def _check_given(self, tensors: Tensors) -> None:
        needs = self.needs
        wanted = {
            "rollout_logprob_BT": needs.rollout_logprobs,
            "reference_logprob_BT": needs.reference_pass,
            "reward_B": needs.rewards,
            "group_B": needs.whole_groups,
            "entropy_BT": needs.entropy != "none",
            "key_B": needs.sample_keys,
        }
        for name, is_wanted in wanted.items():
            if is_wanted and name not in tensors:
                raise ValueError(f"{name} is missing, but {self.name} requires this input; pass {name}")


def _of_weight(
    rewards: Mapping[str, Tensor] | None, weights: Mapping[str, float], mask_BT: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Return the rewards with nonzero weight [B, K], sorted by name, and their weights [K].

    The first value is None if `rewards` is None or empty. Raises `ValueError` for an unknown name in
    `weights`, for a weight that is not finite, for wrong shapes, and if all weights are 0.
    """
    rewards = rewards or {}
    for name, weight in weights.items():
        if name not in rewards:
            raise ValueError(f"unknown reward {name!r} in weights; remove it, or pass it in rewards")
        if not math.isfinite(weight):
            raise ValueError(f"weights[{name!r}] must be a finite number, got {weight}")
    for name, reward_B in rewards.items():
        if reward_B.shape != mask_BT.shape[:1]:
            raise ValueError(
                f"rewards[{name!r}] must have shape [{len(mask_BT)}], got {list(reward_B.shape)}"
            )
    names = sorted(name for name in rewards if weights.get(name, 1.0))
    if rewards and not names:
        raise ValueError("the weight of at least one reward must not be 0; change weights")
    weight_K = torch.tensor([weights.get(name, 1.0) for name in names], dtype=torch.float64)
    found = [rewards[name].double() for name in names]
    return torch.stack(found, dim=1) if found else None, weight_K.to(mask_BT.device)


def _check_shapes(logprob_BT: Tensor, mask_BT: Tensor, tensors: Tensors) -> None:
    given = {**tensors, "logprob_BT": logprob_BT}
    for name, tensor in given.items():
        shapes = [mask_BT.shape, mask_BT.shape[:1]]
        if name != "advantage_BT":
            shapes = shapes[1:] if name in _BY_ROW else shapes[:1]
        if tensor.shape not in shapes:  # type: ignore[attr-defined]
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise ValueError(
                f"{name} must have shape {wanted} to match mask_BT, got {list(tensor.shape)}"  # type: ignore[attr-defined]
            )


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
