"""Which groups train: filters on the rollout batch, by whether their rewards carry a signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GroupFilter:
    """What happens to groups whose rewards are all equal.

    Attributes
    ----------
    kind
        `keep`: they are trained on like any other; only a regularizer gives them a gradient.
        `skip`: they are not computed; means still count their tokens and rows, so the gradient is that
        of `keep` without a regularizer.
        `drop`: they are not computed and count nowhere; means are over what remains.
        `resample`: they are dropped, and more prompts are sampled until the batch is full (DAPO, arXiv
        2503.14476, section 3.2).
    max_num_rounds
        For `resample`: one more prompt is sampled for each group that is dropped, up to this many times a
        batch's prompts per step; the step trains on what there is.
    """

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    max_num_rounds: int = 1

    def keeps(self, rewards: Sequence[float]) -> bool:
        """Whether a group with these rewards stays in the batch."""
        return self.kind in ("keep", "skip") or _has_signal(rewards)

    def computes(self, rewards: Sequence[float]) -> bool:
        """Whether a group that stays is computed, rather than only counted in means."""
        return self.kind != "skip" or _has_signal(rewards)


def _has_signal(rewards: Sequence[float]) -> bool:
    return len(set(rewards)) > 1
