"""Filters for rollout groups whose completions all have equal rewards or equal correctness."""

from __future__ import annotations

from typing import Literal

from atrium.base.section import Count, Section


class GroupFilter(Section):
    """The treatment of groups whose completions have equal rewards or equal correctness (see `judge`)."""

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    """Treatment of such groups. `keep`: they are trained on like any other. `skip`: no pass computes them,
    but means still count their tokens and rows; the gradient is that of `keep` if groups with equal rewards
    have no gradient. `drop`: they are not computed and not counted anywhere. `resample`: they are dropped,
    and more prompts are sampled until the batch is full (DAPO, arXiv 2503.14476, section 3.2). With a
    baseline other than the group's, dropped groups would have a gradient, which is lost."""
    max_num_rounds: Count = 1
    """For resample: maximum number of prompts sampled per step, in multiples of rollout.num_prompts; the step
    then trains on the available groups."""
    judge: Literal["reward", "correctness"] = "reward"
    """What has to differ within a group: its rewards, penalties included, or whether its answers are correct
    (DAPO, eq. 11: 0 < number correct < group size). Of several rewards, the weighted sum has to differ, or
    with advantage.per_reward any reward of nonzero weight."""

    def keeps(self, *, differs: bool) -> bool:
        """Return whether a group stays in the batch.

        `differs` says whether its completions differ in the quantity selected by `judge`.
        """
        return self.kind in ("keep", "skip") or differs

    def computes(self, *, differs: bool) -> bool:
        """Return whether an update runs the model on the completions of a group that stays in the batch.

        Means count these completions even if the result is False. `differs` says whether the completions
        differ in the quantity selected by `judge`.
        """
        return self.kind != "skip" or differs
