"""Which groups train: filters on the rollout batch, by whether a group's rewards or answers differ."""

from __future__ import annotations

from typing import Literal

from atrium.base.section import Count, Section


class GroupFilter(Section):
    """What happens to groups that are all equal in what is judged."""

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    """`keep`: they are trained on like any other. `skip`: they are not computed; means still count their
    tokens and rows, so the gradient is that of `keep` wherever equal rewards have none. `drop`: they are not
    computed and count nowhere. `resample`: they are dropped, and more prompts are sampled until the batch is
    full (DAPO, arXiv 2503.14476, section 3.2). What gradient dropped groups have under another
    baseline than the group's is lost."""
    max_num_rounds: Count = 1
    """For resample: the most prompts sampled per step, in multiples of rollout.num_prompts; the step trains
    on what there is."""
    judge: Literal["reward", "correctness"] = "reward"
    """What has to differ within a group: its rewards, penalties included, or whether its answers are correct
    (DAPO, eq. 11: 0 < number correct < group size). Of several rewards, the weighted sum has to differ, or
    with advantage.per_reward any reward of nonzero weight."""

    def keeps(self, *, differs: bool) -> bool:
        """Whether a group stays in the batch, by whether its completions differ in what `judge` names."""
        return self.kind in ("keep", "skip") or differs

    def computes(self, *, differs: bool) -> bool:
        """Whether a group that stays is computed, rather than only counted in means."""
        return self.kind != "skip" or differs
