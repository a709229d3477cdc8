"""Which tokens count, and how much: a detached factor on each token's term, chosen in `prepare`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atrium.objective.batch import Batch, Needs, PolicyTokens


class TokenWeight(ABC):
    """A weighting of the minibatch's tokens."""

    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def factor(self, minibatch: Batch, policy: PolicyTokens | None) -> Tensor | None:
        """The factor [B, T], or None for 1 everywhere."""


@dataclass(frozen=True)
class AllTokens(TokenWeight):
    """Every token counts the same."""

    def factor(self, minibatch: Batch, policy: PolicyTokens | None) -> Tensor | None:
        """None: no token is singled out."""
        return None


@dataclass(frozen=True, kw_only=True)
class TopEntropy(TokenWeight):
    """Only the share `frac` of the minibatch's tokens with the highest entropy (arXiv 2506.01939).

    The threshold is taken over the rows of this process.
    """

    frac: float
    needs: ClassVar[Needs] = Needs(prepare_pass=True, entropy="value")

    def factor(self, minibatch: Batch, policy: PolicyTokens | None) -> Tensor | None:
        """1 at chosen tokens, 0 elsewhere."""
        assert policy is not None
        assert policy.entropy_BT is not None, "`needs` asks for the pass and for entropies"
        entropy_N = policy.entropy_BT[minibatch.mask_BT]
        if len(entropy_N) == 0:
            return None
        num_kept = max(1, round(self.frac * len(entropy_N)))
        threshold = entropy_N.topk(num_kept).values[-1]
        chosen_BT = torch.where(minibatch.mask_BT, policy.entropy_BT, -torch.inf) >= threshold
        return chosen_BT.to(entropy_N.dtype)


TOKEN_WEIGHTS: dict[str, Callable[..., TokenWeight]] = {
    "all": AllTokens,
    "top_entropy": TopEntropy,
}
