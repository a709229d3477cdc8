"""A tabular autoregressive softmax policy in float64, whose completions can all be enumerated.

With a small vocabulary and short completions, the true KL, total variation, entropy, expected reward and
their gradients are sums over all completions. The estimates of an objective are compared with these exact
values.

Axes: B completions (all V^T in lexicographic order, unless rows are selected), T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atrium.method.batch import Batch, PolicyTokens
from atrium.method.divergences import StateDivergence, TopKDivergence
from atrium.method.objective import MinibatchConstants, Objective
from atrium.method.state_divergences import STATE_DIVERGENCES, top_tokens, with_rest


@dataclass(frozen=True)
class Tabular:
    """A policy given by the logits of each token after every prefix; `logits[t]` has t + 1 axes of size V."""

    logits: tuple[Tensor, ...]

    @classmethod
    def random(cls, seed: int, num_tokens: int, *, vocabulary: int = 3, spread: float = 1.0) -> Tabular:
        """Return a policy with normal logits of standard deviation `spread`."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [(vocabulary,) * (position + 1) for position in range(num_tokens)]
        return cls(
            tuple(spread * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens T in each completion."""
        return len(self.logits)

    @property
    def vocabulary(self) -> int:
        """Size V of the vocabulary."""
        return self.logits[0].shape[-1]

    @property
    def num_completions(self) -> int:
        """Number of completions, V^T."""
        return int(self.vocabulary**self.num_tokens)

    def near(self, seed: int, distance: float) -> Tabular:
        """Return a copy with normal noise of standard deviation `distance` added to the logits."""
        other = Tabular.random(seed, self.num_tokens, vocabulary=self.vocabulary, spread=distance)
        return Tabular(tuple(a + b for a, b in zip(self.logits, other.logits, strict=True)))

    def trainable(self) -> Tabular:
        """Return a copy whose logits require gradients."""
        return Tabular(tuple(part.detach().clone().requires_grad_() for part in self.logits))

    def moved(self, direction: Tensor, size: float) -> Tabular:
        """Return the policy moved by `size` times a flat `direction` in logits, without gradients."""
        parts, start = [], 0
        for part in self.logits:
            step = direction[start : start + part.numel()].reshape(part.shape)
            parts.append(part.detach() + size * step)
            start += part.numel()
        return Tabular(tuple(parts))

    def next_logprob_BTV(self) -> Tensor:
        """Return the next-token log-probabilities at each position of each completion, in nats."""
        columns = []
        for position, part in enumerate(self.logits):
            by_prefix = part.log_softmax(dim=-1).reshape(-1, self.vocabulary)
            columns.append(
                by_prefix.repeat_interleave(self.vocabulary ** (self.num_tokens - position), dim=0)
            )
        return torch.stack(columns, dim=1)

    def token_BT(self) -> Tensor:
        """Return the token ids of each completion."""
        completion_B1 = torch.arange(self.num_completions)[:, None]
        after_T = torch.arange(self.num_tokens).flip(0)
        return completion_B1 // self.vocabulary**after_T % self.vocabulary

    def logprob_BT(self) -> Tensor:
        """Return the log-probabilities of each completion's tokens, in nats."""
        columns = []
        for position, part in enumerate(self.logits):
            by_token = part.log_softmax(dim=-1).flatten()
            num_after = self.vocabulary ** (self.num_tokens - 1 - position)
            columns.append(by_token.repeat_interleave(num_after))
        return torch.stack(columns, dim=1)

    def logprob_B(self) -> Tensor:
        """Return the log-probabilities of whole completions, in nats."""
        return self.logprob_BT().sum(dim=1)

    def entropy_BT(self) -> Tensor:
        """Return the entropy of the next-token distribution at each position of each completion, in nats."""
        next_BTV = self.next_logprob_BTV()
        return -(next_BTV.exp() * next_BTV).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropy of the distribution of completions, in nats."""
        logprob_B = self.logprob_B()
        return -(logprob_B.exp() * logprob_B).sum()

    def expected(self, value_B: Tensor) -> Tensor:
        """Return the expectation under the policy of a value that is given for each completion."""
        return (self.logprob_B().exp() * value_B).sum()

    def gradient(self, value: Tensor) -> Tensor:
        """Return the flat gradient of a scalar with respect to all logits."""
        parts = torch.autograd.grad(value, self.logits, allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])


def kl(p_B: Tensor, q_B: Tensor) -> Tensor:
    """Return KL(p || q) in nats from the two policies' log-probabilities of all completions."""
    return (p_B.exp() * (p_B - q_B)).sum()


def total_variation(p_B: Tensor, q_B: Tensor) -> Tensor:
    """Return the total variation distance between two policies.

    `p_B` and `q_B` are the policies' log-probabilities of all completions.
    """
    return 0.5 * (p_B.exp() - q_B.exp()).abs().sum()


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Return the norm of `found` - `truth`, divided by the norm of `truth`."""
    return float((found - truth).norm() / truth.norm())


def batch_of(
    rows: Tensor, *, behavior: Tabular, reward_B: Tensor, group_B: Tensor, reference: Tabular | None = None
) -> Batch:
    """Return a rollout batch of the completions with indices `rows`.

    The reference defaults to the behavior policy.
    """
    anchor_BT, reference_BT = (one.logprob_BT().detach()[rows] for one in (behavior, reference or behavior))
    return batch_at(anchor_BT, reward_B=reward_B, group_B=group_B, reference_BT=reference_BT)


def batch_at(anchor_BT: Tensor, *, reward_B: Tensor, group_B: Tensor, reference_BT: Tensor) -> Batch:
    """Return a rollout batch without padding; engine and trainer log-probabilities are both `anchor_BT`."""
    return Batch(
        mask_BT=torch.ones(anchor_BT.shape, dtype=torch.bool),
        reward_B=reward_B,
        group_B=group_B,
        sample_key_B=torch.arange(len(anchor_BT)),
        rollout_logprob_BT=anchor_BT,
        behavior_logprob_BT=anchor_BT,
        proximal_logprob_BT=anchor_BT,
        reference_logprob_BT=reference_BT,
        is_trained_B=torch.ones(len(anchor_BT), dtype=torch.bool),
    )


def prepared(objective: Objective, batch: Batch, tokens: PolicyTokens) -> MinibatchConstants:
    """Return the result of the objective's prepare phase, computed from the objective's initial state."""
    return objective.prepare(
        batch, tokens if objective.needs.prepare_pass else None, objective.initial_state()
    )


def tokens_of(policy: Tabular, rows: Tensor, objective: Objective, behavior: Tabular) -> PolicyTokens:
    """Return the policy's log-probabilities at the tokens of the completions with indices `rows`.

    Entropies and divergences from `behavior` are included if `objective` needs them.
    """
    needs = objective.needs
    return PolicyTokens(
        logprob_BT=policy.logprob_BT()[rows],
        entropy_BT=None if needs.entropy == "none" else policy.entropy_BT()[rows],
        divergence_BT=(
            None
            if needs.distribution == "none"
            else _state_divergence_BT(objective.method.divergence, behavior, policy)[rows]
        ),
    )


@torch.no_grad()
def _state_divergence_BT(divergence: object, behavior: Tabular, policy: Tabular) -> Tensor:
    """Return the divergence [B, T] between behavior policy and policy at each position of each completion."""
    assert isinstance(divergence, StateDivergence | TopKDivergence), (
        "only a state divergence needs distributions"
    )
    anchor_BTV, policy_BTV = behavior.next_logprob_BTV(), policy.next_logprob_BTV()
    if isinstance(divergence, TopKDivergence):
        token_BTK = top_tokens(anchor_BTV, divergence.top_k, policy.token_BT())
        anchor_BTV, policy_BTV = with_rest(anchor_BTV, token_BTK), with_rest(policy_BTV, token_BTK)
    return STATE_DIVERGENCES[divergence.measure](anchor_BTV, policy_BTV)
