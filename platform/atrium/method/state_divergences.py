"""Divergences between whole next-token distributions, computed in chunks to limit memory.

The objective receives their values as `divergence_BT` and never sees logits; a forward pass calls these
functions, without gradient, on the anchor's and the policy's logits. Axes: N positions, V vocabulary, K
chosen tokens. Sources: TR-PPO, arXiv 1903.07940, for the KL of whole distributions; DPPO, arXiv 2602.04879,
for the top k tokens with one bucket for the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DistributionDivergence = Callable[[Tensor, Tensor], Tensor]
"""A function from log-probabilities [N, V] of anchor and policy to a divergence per position [N]."""


def kl_divergence(anchor_logprob_NV: Tensor, policy_logprob_NV: Tensor) -> Tensor:
    """Return KL(anchor || policy) [N] in nats, >= 0; outcomes with anchor probability 0 add nothing."""
    gap_NV = anchor_logprob_NV - policy_logprob_NV
    term_NV = anchor_logprob_NV.exp() * gap_NV
    return torch.where(anchor_logprob_NV.isneginf(), 0.0, term_NV).sum(dim=-1).clamp(min=0.0)


def total_variation(anchor_logprob_NV: Tensor, policy_logprob_NV: Tensor) -> Tensor:
    """Return the total variation distance [N], half the L1 distance, in [0, 1]."""
    return 0.5 * (anchor_logprob_NV.exp() - policy_logprob_NV.exp()).abs().sum(dim=-1)


def with_rest(logprob_NV: Tensor, token_NK: Tensor) -> Tensor:
    """Return the log-probabilities of the given tokens, and of all other tokens together, [N, K + 1].

    If there are no other tokens, their log-probability is -inf.
    """
    chosen_NK = logprob_NV.gather(-1, token_NK)
    others_NV = logprob_NV.scatter(-1, token_NK, -torch.inf)
    return torch.cat([chosen_NK, others_NV.logsumexp(dim=-1, keepdim=True)], dim=-1)


def top_tokens(logprob_NV: Tensor, top_k: int, token_N: Tensor) -> Tensor:
    """Return the indices [N, K] of each position's K most likely tokens, where K = min(top_k, V).

    If the sampled token `token_N` is not among them, it replaces the least likely one, as in DPPO. Without
    this replacement, the sampled token would be part of the bucket of all remaining tokens, where its
    probability could change without changing the divergence.
    """
    top_NK = logprob_NV.topk(min(top_k, logprob_NV.shape[-1]), dim=-1).indices
    is_there_N = (top_NK == token_N[..., None]).any(dim=-1)
    last_N = torch.where(is_there_N, top_NK[..., -1], token_N)
    return torch.cat([top_NK[..., :-1], last_N[..., None]], dim=-1)


@torch.no_grad()
def divergence_by_chunks(
    anchor_logits: Callable[[slice], Tensor],
    policy_logits: Callable[[slice], Tensor],
    token_N: Tensor,
    *,
    divergence: DistributionDivergence,
    top_k: int | None = None,
    chunk_size: int = 1024,
) -> Tensor:
    """Return the divergence [N] at every position, with one chunk's logits in memory at a time.

    Parameters
    ----------
    anchor_logits, policy_logits
        Functions that return the logits [n, V] of a slice of positions. Adding a constant to all logits of a
        position has no effect.
    token_N
        The sampled tokens.
    divergence
        `kl_divergence` or `total_variation`.
    top_k
        Number of tokens that are compared one by one: the anchor's most likely ones, and always the
        sampled token (see `top_tokens`). All other tokens are compared together, as one outcome. None
        compares the whole vocabulary token by token.
    chunk_size
        Number of positions per chunk.
    """
    found = []
    for start in range(0, len(token_N), chunk_size):
        positions = slice(start, min(start + chunk_size, len(token_N)))
        anchor_NV = anchor_logits(positions).float().log_softmax(dim=-1)
        policy_NV = policy_logits(positions).float().log_softmax(dim=-1)
        if top_k is not None:
            token_NK = top_tokens(anchor_NV, top_k, token_N[positions])
            anchor_NV, policy_NV = with_rest(anchor_NV, token_NK), with_rest(policy_NV, token_NK)
        found.append(divergence(anchor_NV, policy_NV))
    return torch.cat(found) if found else torch.zeros(0)


STATE_DIVERGENCES: dict[str, DistributionDivergence] = {
    "kl": kl_divergence,
    "total_variation": total_variation,
}
