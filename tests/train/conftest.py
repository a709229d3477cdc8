"""Tiny policies, graded groups of random tokens, and updaters on them.

Gradients are compared on a float64 GPT-2, whose layers compute in the dtype of its weights throughout.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from atrium.base.records import (
    Completion,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    Verdict,
    VerdictKind,
)
from atrium.config.compose import compose
from atrium.engines.collate import collate
from atrium.method.objective import Objective
from atrium.models.policy import build_random_policy
from atrium.models.settings import TOKENS, TinySettings
from atrium.models.tiny import build_tiny_policy, build_tokenizer
from atrium.train.measure.measurements import Measurements
from atrium.train.settings import AdamWSettings
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer
from atrium.train.update.update import UpdateSettings
from atrium.train.update.updater import PolicyUpdater

PAD = 0
SMALL = TinySettings(
    hidden_size=16, num_layers=1, num_heads=2, num_key_value_heads=1, head_dim=8, feed_forward_size=24
)


def tiny_policy(seed=0):
    """A Qwen3 policy in float32."""
    return build_tiny_policy(SMALL, seed)


def exact_model(seed=0, *, context_length=64):
    """A float64 model without any float32 inside."""
    architecture = {
        "model_type": "gpt2",
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": context_length,
        "initializer_range": 0.3,
    }
    return build_random_policy(
        architecture, tokenizer=build_tokenizer(), seed=seed, dtype=torch.float64
    ).model


def random_groups(seed=0, *, rewards=((1, 0, 0), (0, 1, 1), (1, 1, 0), (0, 0, 1)), longest=9):
    """A group per tuple of rewards, with ragged random prompts and completions."""
    rng = np.random.default_rng(seed)
    groups = []
    for number, group_rewards in enumerate(rewards):
        rollouts = []
        for index, reward in enumerate(group_rewards):
            num_tokens = int(rng.integers(1, longest + 1))
            completion = Completion(
                token_ids=rng.integers(1, len(TOKENS), num_tokens).astype(np.int32),
                logprobs=-rng.exponential(2.0, num_tokens).astype(np.float32),
                text="",
                finish_reason=FinishReason.STOP,
                weight_version=0,
            )
            verdict = Verdict(kind=VerdictKind.INCORRECT, reason="")
            rollouts.append(
                Rollout(sample_index=index, completion=completion, verdict=verdict, reward=float(reward))
            )
        prompt = rng.integers(1, len(TOKENS), int(rng.integers(1, 7))).astype(np.int32)
        problem = Problem(problem_id=f"problem-{number}", question="", answer="")
        groups.append(RolloutGroup(problem=problem, prompt_token_ids=prompt, rollouts=tuple(rollouts)))
    return groups


def rows_of(groups, trains=None, *, model=None, spread=0.0, seed=0):
    """Collated rows; given a model, sampled from a policy `spread` nats away from it, in its dtype."""
    trains = [True] * len(groups) if trains is None else trains
    rows = collate(groups, trains=trains, pad_token_id=PAD, seed=0, device="cpu")
    if model is None:
        return rows
    with torch.no_grad():
        logprob_BT = forward_of(model)(rows, entropy="none").logprob_BT
    noise = torch.randn(
        logprob_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=logprob_BT.dtype
    )
    moved_BT = torch.where(rows.batch.mask_BT, logprob_BT + spread * noise, 0.0)
    return rows.with_batch(replace(rows.batch, rollout_logprob_BT=moved_BT))


class CountedForward(PolicyForward):
    """A forward pass that keeps account of its calls: the rows of each, and whether with gradient."""

    def __init__(self, model, *, temperature=1.0, **settings):
        super().__init__(model, temperature=temperature, **settings)
        self.calls = []

    def __call__(self, rows, *, entropy):
        self.calls.append((rows.batch.num_rows, torch.is_grad_enabled()))
        return super().__call__(rows, entropy=entropy)


def forward_of(model, **settings):
    return CountedForward(model, **settings)


@cache
def objective_of(*overrides):
    """The objective of `algorithm=...` and further overrides, as a run would have it."""
    return Objective(compose(["debug=tiny_steps", *overrides]).method)


OPTIMIZER = AdamWSettings(
    learning_rate=0.01,
    beta1=0.9,
    beta2=0.99,
    epsilon=1.0,  # so large that an update is smooth in the gradient, and can be compared
    weight_decay=0.0,
    num_warmup_steps=0,
    schedule="constant",
    max_grad_norm=None,
)


def updater_of(objective, model, *, reference=None, optimizer=OPTIMIZER, **settings):
    defaults = {
        "num_minibatches": 1,
        "num_epochs": 1,
        "micro_batch_tokens": 100_000,
        "behavior_logprobs": "engine",
        "seed": 0,
    }
    return PolicyUpdater(
        objective=objective,
        forward=forward_of(model),
        optimizer=PolicyOptimizer(model, optimizer, num_steps=10),
        settings=UpdateSettings(**(defaults | settings)),
        reference_forward=None if reference is None else forward_of(reference),
    )


def run_step(updater, rows, *, step=1, trace=False, state=None):
    """One training step: its output, and its metrics by name."""
    measurements = Measurements()
    state = state or updater.objective.initial_state()
    output = updater.step(rows, state, step=step, measurements=measurements, trace=trace)
    return output, {quantity.name: value for quantity, value in measurements.values().items()}


def calls_of(updater):
    """The passes of a step, (rows, with gradient) each, but for the last, which measures the KL after it."""
    *calls, (_, with_gradient) = updater.forward.calls
    assert not with_gradient
    return calls


@pytest.fixture(scope="session")
def make():
    """The functions of this module."""
    return SimpleNamespace(
        tiny_policy=tiny_policy,
        calls=calls_of,
        exact_model=exact_model,
        groups=random_groups,
        rows=rows_of,
        forward=forward_of,
        objective=objective_of,
        updater=updater_of,
        step=run_step,
    )
