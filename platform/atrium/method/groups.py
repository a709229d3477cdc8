"""Filters of rollout groups, by whether a group's rewards or answers differ."""

from __future__ import annotations

from typing import Literal

from atrium.base.section import Count, Section


class GroupFilter(Section):
    """The treatment of groups in which all judged values are equal."""

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    """Treatment of such groups. `keep`: they are trained on like any other. `skip`: they are not computed;
    means still count their tokens and rows, so the gradient is that of `keep` wherever equal rewards have
    none. `drop`: they are not computed and not counted anywhere. `resample`: they are dropped, and more
    prompts are sampled until the batch is full (DAPO, arXiv 2503.14476, section 3.2). Any gradient that
    dropped groups would have with a baseline other than the group's is lost."""
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
        """Return whether a group in the batch is computed, rather than only counted in means."""
        return self.kind != "skip" or differs
