"""Divergences of the policy's next-token distributions from those at the start of the step.

The policy at the start of the step is the proximal policy, even if another policy sampled the batch. The
first update overwrites its weights. Therefore the last hidden states of the step's completion tokens and a
frozen copy of the LM head are kept, from which logits are computed chunk by chunk.

Axes: N completion tokens, D width of the model, V vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from torch import Tensor, nn

from atrium.method.divergences import Divergence, StateDivergence, TopKDivergence
from atrium.method.state_divergences import (
    STATE_DIVERGENCES,
    DistributionDivergence,
    divergence_by_chunks,
)
from atrium.train.update.token_logprobs import tempered_logits


@dataclass
class DivergenceMeter:
    """A meter of `divergence` over the proximal policy's `top_k` likeliest tokens and a bucket for the rest.

    If `top_k` is None, the divergence is over the whole vocabulary.
    """

    divergence: DistributionDivergence
    top_k: int | None
    _proximal_head: nn.Module | None = field(default=None, init=False)

    def freeze(self, head: nn.Module) -> None:
        """Store a frozen copy of the LM head. Call this at the start of each step."""
        self._proximal_head = copy.deepcopy(head).requires_grad_(False)

    def measure(
        self,
        proximal_state_ND: Tensor,
        state_ND: Tensor,
        token_N: Tensor,
        head: nn.Module,
        temperature: float,
    ) -> Tensor:
        """Return the divergence [N] of the proximal and the current policy, computed without gradient.

        Each policy's next-token distributions at N positions are computed from its last hidden states and its
        LM head: the frozen head for the proximal policy, and `head` for the current one. `token_N` contains
        the tokens sampled at these positions.
        """
        proximal_head = self._proximal_head
        assert proximal_head is not None, "the head is frozen where the states are computed"
        return divergence_by_chunks(
            lambda positions: tempered_logits(proximal_head, proximal_state_ND[positions], temperature),
            lambda positions: tempered_logits(head, state_ND[positions], temperature),
            token_N,
            divergence=self.divergence,
            top_k=self.top_k,
        )


def meter_of(divergence: Divergence) -> DivergenceMeter | None:
    """Return the meter of a divergence between next-token distributions, or None for other divergences."""
    match divergence:
        case StateDivergence():
            return DivergenceMeter(STATE_DIVERGENCES[divergence.measure], None)
        case TopKDivergence():
            return DivergenceMeter(STATE_DIVERGENCES[divergence.measure], divergence.top_k)
    return None
