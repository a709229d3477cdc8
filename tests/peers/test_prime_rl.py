"""The custom loss on prime-rl's documented interface: sums of sequences, divided by the batch's tokens."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

import atrium
from atrium.base.errors import ConfigError
from atrium.peers.prime_rl import loss


@dataclass
class LossInputs:
    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


@dataclass
class LossOutputs:
    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _documented(monkeypatch):
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.trainer.rl.loss"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["prime_rl.trainer.rl.loss"].LossOutputs = LossOutputs


def sequences():
    generator = torch.Generator().manual_seed(3)
    for length in (3, 7, 5):
        sampled = -torch.rand(length, generator=generator) - 0.1
        now = (sampled + 0.4 * torch.randn(length, generator=generator)).requires_grad_()
        advantage = torch.randn(1, generator=generator).expand(length)
        yield LossInputs(now, sampled, None, advantage, torch.arange(length) >= 1)


def test_sequences_add_up_to_the_mean_over_tokens():
    settings = ["divergence.delta=0.02", "algorithm.reduction.kind=token_mean"]
    rows = list(sequences())
    outputs = [loss(row, method="atr", settings=settings) for row in rows]
    (sum(output.loss for output in outputs) / sum(row.loss_mask.sum() for row in rows)).backward()

    def padded(name):
        values = [getattr(row, name).detach() for row in rows]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)

    logprob_BT = padded("trainer_logprobs").requires_grad_()
    atrium.load_method("atr", *settings).loss(
        logprob_BT,
        padded("loss_mask"),
        advantage_BT=padded("advantages"),
        old_logprob_BT=padded("inference_logprobs"),
    ).loss.backward()
    for row, expected_T in zip(rows, logprob_BT.grad, strict=True):
        torch.testing.assert_close(row.trainer_logprobs.grad, expected_T[: len(row.advantages)])
    assert logprob_BT.grad.abs().max() > 0
    assert outputs[1].metrics["objective/kl_k3"] > 0


@pytest.mark.parametrize(("method", "said"), [("grpo", "number of completions"), ("gvpo", "whole groups")])
def test_what_prime_rl_does_not_hand_over_is_named(method, said):
    with pytest.raises(ConfigError, match=said):
        loss(next(sequences()), method=method)


def test_weights_of_tokens_are_refused():
    row = next(sequences())
    row.loss_weights = torch.ones(3)
    with pytest.raises(ConfigError, match="loss_weights"):
        loss(row, method="dapo")
