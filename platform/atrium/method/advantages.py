"""Advantages of completions, defined by a baseline, a scale, a kind of return, and optional whitening.

Statistics are computed in float64 over the whole rollout batch. Baselines and standard deviations of groups
are computed after subtracting the smallest reward of each group, so that equal rewards give exactly 0 and
large rewards lose no precision. A group must not span ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from atrium.base.section import NonNegative, Number, PositiveFrac, Section
from atrium.method.batch import Batch, Sum, neutral

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-12
"""Smallest standard deviation of a batch relative to its mean; smaller ones are rounding errors, set to 0."""


class Advantage(Section):
    """Advantage of a completion: (return - baseline - offset) / (scale + epsilon), optionally whitened."""

    baseline: Literal["none", "group_mean", "leave_one_out", "batch_mean", "length_weighted", "runner_up"] = (
        "group_mean"
    )
    """The value subtracted from the return. `group_mean`: GRPO's. `leave_one_out`: the mean of the group's
    other returns (RLOO). `batch_mean`: the mean of the batch. `length_weighted`: the group's mean weighted by
    the completions' numbers of trained tokens (OPO, arXiv 2505.23585); the plain mean for a group without
    tokens. `runner_up`: the group's second largest return; all rows but the best get 0 (Pass@k, arXiv
    2503.19595). `none`: nothing."""
    offset: Number = 0.0
    """Constant added to the baseline (AsymRE's delta V, arXiv 2506.20520)."""
    scale: Literal["none", "group_std", "group_mean", "batch_std", "nonzero_frac"] = "none"
    """The divisor of the difference. `group_std`: the standard deviation of the group (GRPO). `group_mean`:
    the mean of the group, with advantage 0 if it is not positive (MaxRL, arXiv 2602.02710). `batch_std`: the
    standard deviation of all rewards of the batch (Lite-PPO). `nonzero_frac`: the fraction of completions of
    the batch whose reward is not 0 (GPG, arXiv 2504.02546), without `epsilon`. `none`: 1 (Dr. GRPO)."""
    ddof: Literal[0, 1] = 1
    """1 divides variances by n - 1 (verl, TRL), 0 by n; a group of one has deviation 0 under both."""
    epsilon: NonNegative = 1e-6
    """Constant added to the divisor. With 0, equal rewards, whose deviation is 0, give advantage 0."""
    returns: Literal["sequence", "token"] = "sequence"
    """Whether there is one return per completion, or a discounted one per token: the reward at the last token
    plus per-token penalties, summed backward (REINFORCE++, arXiv 2501.03262)."""
    discount: PositiveFrac = 1.0
    """Discount factor of token returns."""
    whiten: Literal["none", "tokens", "rows"] = "none"
    """Whether scaled advantages are whitened to mean 0 and standard deviation 1 (ddof 1): over all trained
    tokens of the batch (REINFORCE++) or over all its completions."""
    whiten_epsilon: NonNegative = 1e-8
    """Constant added to the variance for `whiten=tokens`, as in verl, and to the standard deviation for
    `whiten=rows`, as in TRL."""
    per_reward: bool = False
    """Whether baseline and scale apply to each of several rewards before these are weighted and added (GDPO,
    arXiv 2601.05242), rather than to the weighted sum. A reward then contributes 0 in groups where it is
    equal for all completions. If a reward abstained for a completion, it contributes 0 there, and the
    completion does not count in the reward's statistics."""

    @model_validator(mode="before")
    @classmethod
    def _read_token_std(cls, data: Any) -> Any:  # noqa: ANN401 - unvalidated input
        """Convert `scale=token_std`, the earlier name of `whiten=tokens`; `epsilon` becomes `whiten_epsilon`.

        Other input is returned unchanged. Raises `ValueError` if `whiten` is also set and is not `tokens`.
        """
        if not isinstance(data, Mapping) or data.get("scale") != "token_std":
            return data
        if data.get("whiten", "tokens") != "tokens":
            raise ValueError(
                "scale=token_std, the earlier name of whiten=tokens, cannot be combined with "
                f"whiten={data['whiten']}; remove one of them"
            )
        kept = {name: value for name, value in data.items() if name != "epsilon"}
        epsilon = data.get("epsilon", cls.model_fields["epsilon"].default)
        return {**kept, "scale": "none", "whiten": "tokens", "whiten_epsilon": epsilon}

    @model_validator(mode="after")
    def _check_whitened_rows(self) -> Self:
        if self.whiten == "rows" and self.returns == "token":
            raise ValueError(
                "returns must be sequence with whiten=rows, which whitens one return per completion, got "
                "returns=token"
            )
        return self

    @property
    def is_grouped(self) -> bool:
        """Whether the baseline, or the standard deviation in the divisor, is computed within each group."""
        grouped = ("group_mean", "leave_one_out", "length_weighted", "runner_up")
        return self.baseline in grouped or self.scale == "group_std"

    def compute(self, batch: Batch, penalty_BT: Tensor | None, sum_over_ranks: Sum) -> Tensor:
        """Return advantages [B, T] in the log-probabilities' dtype, 0 where `mask_BT` is False.

        Parameters
        ----------
        batch
            The rollout batch.
        penalty_BT
            Each token's KL penalty, which is subtracted from the reward, or None for no penalty.
        sum_over_ranks
            Sums a tensor over all ranks.
        """
        num_tokens_B = batch.mask_BT.sum(dim=1).double()
        if self.per_reward and batch.reward_BK is not None:
            scaled_B = self._sum_of_parts(batch, num_tokens_B, sum_over_ranks)
        else:
            reward_B = self._penalized(batch, penalty_BT)
            scaled_B = self._standardized(reward_B, batch.group_B, num_tokens_B, sum_over_ranks)
        if self.whiten == "rows":
            rows_B = batch.mask_BT.new_ones(len(scaled_B))
            scaled_B = _whiten(scaled_B, rows_B, 0.0, self.whiten_epsilon, sum_over_ranks)
        advantage_BT = scaled_B[:, None] * batch.mask_BT
        if self.returns == "token":
            advantage_BT = self._token_returns(scaled_B, batch.mask_BT, penalty_BT)
        if self.whiten == "tokens":
            advantage_BT = _whiten(advantage_BT, batch.mask_BT, self.whiten_epsilon, 0.0, sum_over_ranks)
        return advantage_BT.to(batch.rollout_logprob_BT.dtype)

    def _penalized(self, batch: Batch, penalty_BT: Tensor | None) -> Tensor:
        reward_B = batch.reward_B.double()
        if self.returns == "sequence" and penalty_BT is not None:
            return reward_B - neutral(penalty_BT.double(), batch.mask_BT).sum(dim=1)
        return reward_B

    def _sum_of_parts(self, batch: Batch, num_tokens_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """Return the weighted sum [B] of the advantages computed from each named reward.

        A reward that is NaN for a row contributes 0 to that row.
        """
        assert batch.reward_BK is not None
        assert batch.weight_BK is not None
        total_B = batch.reward_BK.new_zeros(batch.num_rows)
        for reward_B, weight_B in zip(batch.reward_BK.unbind(1), batch.weight_BK.unbind(1), strict=True):
            rows = (~reward_B.isnan()).nonzero()[:, 0]
            part = self._standardized(reward_B[rows], batch.group_B[rows], num_tokens_B[rows], sum_over_ranks)
            total_B = total_B.index_add(0, rows, weight_B[rows] * part)
        return total_B

    def _standardized(
        self, reward_B: Tensor, group_B: Tensor, num_tokens_B: Tensor, sum_over_ranks: Sum
    ) -> Tensor:
        centred_B = self._centred(reward_B, group_B, num_tokens_B, sum_over_ranks) - self.offset
        return self._scaled(centred_B, reward_B, group_B, sum_over_ranks)

    def _scaled(self, centred_B: Tensor, reward_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        match self.scale:
            case "none":
                return centred_B
            case "group_std":
                return _divided(centred_B, _group_std(reward_B, group_B, self.ddof) + self.epsilon)
            case "group_mean":
                mean_B = group_mean(reward_B, group_B)
                return _divided(centred_B, (mean_B + self.epsilon).masked_fill(mean_B <= 0.0, 0.0))
            case "batch_std":
                return _divided(centred_B, _batch_std(reward_B, self.ddof, sum_over_ranks) + self.epsilon)
            case "nonzero_frac":
                num_nonzero, num = reward_B.count_nonzero().double(), reward_B.new_tensor(len(reward_B))
                num_nonzero, num = _all_ranks(num_nonzero, num, sum_over_ranks)
                return centred_B * num / num_nonzero.clamp(min=1.0)

    def _centred(
        self, reward_B: Tensor, group_B: Tensor, num_tokens_B: Tensor, sum_over_ranks: Sum
    ) -> Tensor:
        if self.baseline == "none":
            return reward_B
        if self.baseline == "batch_mean":
            total, count = _all_ranks(reward_B.sum(), reward_B.new_tensor(len(reward_B)), sum_over_ranks)
            return reward_B - total / count.clamp(min=1.0)
        shifted_B, mean_B, size_B = _group_moments(reward_B, group_B)
        if self.baseline == "runner_up":
            return (shifted_B - _second_largest(shifted_B, group_B)).clamp(min=0.0)
        if self.baseline == "length_weighted":
            num_tokens_of_group_B = group_sum(num_tokens_B, group_B)
            weighted_B = group_sum(num_tokens_B * shifted_B, group_B) / num_tokens_of_group_B
            mean_B = mean_B.where(num_tokens_of_group_B == 0.0, weighted_B)
        centred_B = shifted_B - mean_B
        if self.baseline == "leave_one_out":
            return centred_B * size_B / (size_B - 1.0).clamp(min=1.0)
        return centred_B

    def _token_returns(self, reward_B: Tensor, mask_BT: Tensor, penalty_BT: Tensor | None) -> Tensor:
        import torch

        position_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
        last_B = torch.where(mask_BT, position_T, -1).amax(dim=1) if mask_BT.numel() else reward_B.long()
        token_reward_BT = (position_T == last_B[:, None]) * reward_B[:, None]
        if penalty_BT is not None:
            token_reward_BT = token_reward_BT - neutral(penalty_BT.double(), mask_BT)
        returns_BT = torch.zeros_like(token_reward_BT)
        running_B = torch.zeros_like(reward_B)
        for position in reversed(range(mask_BT.shape[1])):
            trained_B = mask_BT[:, position]
            return_B = token_reward_BT[:, position] + self.discount * running_B
            running_B = return_B.where(trained_B, running_B)
            returns_BT[:, position] = running_B.where(trained_B, 0.0)
        return returns_BT


def group_mean(value_B: Tensor, group_B: Tensor, counts_B: Tensor | None = None) -> Tensor:
    """Return the mean [B] over each row's group; `counts_B`, if given, marks the rows to include."""
    counts_B = group_B.new_ones(group_B.shape) if counts_B is None else counts_B
    return group_sum(value_B * counts_B, group_B) / group_sum(counts_B.to(value_B), group_B).clamp(min=1.0)


def group_sum(value_B: Tensor, group_B: Tensor) -> Tensor:
    """Return the sum [B] of the values in each row's group."""
    _, group_index_B, size_P = group_B.unique(return_inverse=True, return_counts=True)
    return value_B.new_zeros(len(size_P)).index_add(0, group_index_B, value_B)[group_index_B]


def _divided(value: Tensor, scale: Tensor) -> Tensor:
    """Return value / scale, or 0 where the scale is 0.

    A scale is 0 if `epsilon` is 0 and rewards are equal, or if `scale=group_mean` and the mean is not
    positive.
    """
    return (value / scale).masked_fill(scale == 0.0, 0.0)  # NaN stays NaN, so that the update is skipped


def _group_moments(reward_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `(shifted, mean, size)`, each [B].

    `shifted` is the reward minus the smallest reward of the row's group, `mean` is the group mean of
    `shifted`, and `size` is the number of rows in the group.
    """
    _, group_index_B, size_P = group_B.unique(return_inverse=True, return_counts=True)
    least_P = reward_B.new_full((len(size_P),), float("inf"))
    least_P = least_P.scatter_reduce(0, group_index_B, reward_B, "amin")
    shifted_B = reward_B - least_P[group_index_B]
    total_P = reward_B.new_zeros(len(size_P)).index_add(0, group_index_B, shifted_B)
    size_P = size_P.to(reward_B.dtype)
    return shifted_B, (total_P / size_P)[group_index_B], size_P[group_index_B]


def _second_largest(value_B: Tensor, group_B: Tensor) -> Tensor:
    """Return the second largest value [B] of each row's group, or the only value in a group of one."""
    _, group_index_B, size_P = group_B.unique(return_inverse=True, return_counts=True)
    nothing_P = value_B.new_full((len(size_P),), -float("inf"))
    best_B = nothing_P.scatter_reduce(0, group_index_B, value_B, "amax")[group_index_B]
    is_best_B = value_B == best_B
    is_only_best_B = is_best_B & (group_sum(is_best_B.to(value_B), group_B) == 1.0)
    others_B = value_B.masked_fill(is_only_best_B, -float("inf"))
    second_B = nothing_P.scatter_reduce(0, group_index_B, others_B, "amax")[group_index_B]
    return best_B.where(second_B.isneginf(), second_B)


def _group_std(reward_B: Tensor, group_B: Tensor, ddof: int) -> Tensor:
    shifted_B, mean_B, size_B = _group_moments(reward_B, group_B)
    variance_B = group_mean((shifted_B - mean_B).square(), group_B)
    return (variance_B * size_B / (size_B - ddof).clamp(min=1.0)).sqrt()


def _batch_std(reward_B: Tensor, ddof: int, sum_over_ranks: Sum) -> Tensor:
    num = reward_B.new_tensor(len(reward_B))
    total, count = _all_ranks(reward_B.sum(), num, sum_over_ranks)
    mean = total / count.clamp(min=1.0)
    square = sum_over_ranks((reward_B - mean).square().sum())
    deviation = (square / (count - ddof).clamp(min=1.0)).sqrt()
    return deviation.masked_fill(deviation <= _ROUNDING * mean.abs(), 0.0)


def _whiten(
    value: Tensor, mask: Tensor, to_variance: float, to_deviation: float, sum_over_ranks: Sum
) -> Tensor:
    """Return the values whitened to mean 0 and variance 1 (ddof 1) over the positions where `mask` is True.

    Values at other positions must be 0. Statistics cover all ranks. `to_variance` is added to the variance,
    and `to_deviation` to the standard deviation, before the division.
    """
    total, count = _all_ranks(value.sum(), mask.sum().double(), sum_over_ranks)
    mean = total / count.clamp(min=1.0)
    centred = (value - mean) * mask
    variance = sum_over_ranks(centred.square().sum()) / (count - 1.0).clamp(min=1.0)
    variance = variance.masked_fill(variance <= (_ROUNDING * mean).square(), 0.0) + to_variance
    deviation = variance.sqrt() + to_deviation
    return (centred * deviation.reciprocal()).masked_fill(deviation == 0.0, 0.0)


def _all_ranks(total: Tensor, count: Tensor, sum_over_ranks: Sum) -> tuple[Tensor, Tensor]:
    import torch

    both = sum_over_ranks(torch.stack([total, count]))
    return both[0], both[1]
