"""Which groups train: filters on the rollout batch, by whether a group's rewards or answers differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GroupFilter:
    """What happens to groups that are all equal in what is judged.

    Attributes
    ----------
    kind
        `keep`: they are trained on like any other.
        `skip`: they are not computed; means still count their tokens and rows, so the gradient is that
        of `keep` wherever equal rewards have none.
        `drop`: they are not computed and count nowhere; means are over what remains. What gradient they have
        under other baselines than the group's is lost.
        `resample`: they are dropped, and more prompts are sampled until the batch is full (DAPO, arXiv
        2503.14476, section 3.2).
    max_num_rounds
        For `resample`: one more prompt is sampled for each group that is dropped, up to this many times a
        batch's prompts per step; the step trains on what there is.
    judge
        What has to differ within a group: the `reward`, penalties included, or the `correctness` of its
        answers (DAPO, equation 11: 0 < number correct < group size).
    """

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    max_num_rounds: int = 1
    judge: Literal["reward", "correctness"] = "reward"

    def keeps(self, judged: Sequence[float]) -> bool:
        """Whether a group stays in the batch, by what `judge` names of each of its completions."""
        return self.kind in ("keep", "skip") or _differs(judged)

    def computes(self, judged: Sequence[float]) -> bool:
        """Whether a group that stays is computed, rather than only counted in means."""
        return self.kind != "skip" or _differs(judged)


def _differs(judged: Sequence[float]) -> bool:
    return len(set(judged)) > 1
