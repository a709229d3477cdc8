"""On a pretended GPU: the bytes that are alive in each phase, against those that `atrium memory` plans.

What is tracked is the trainer's part; that of an engine is arithmetic.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from tests.pretended.cuda import pretended_cuda
from tests.pretended.storages import StorageTracker
from tests.train.conftest import random_groups, run_step

from atrium.assemble.memory import planned_memory
from atrium.assemble.policies import build_reference, build_updater
from atrium.assemble.shapes import exact_shape
from atrium.base.records import Phase
from atrium.config.compose import compose
from atrium.config.machine import Machine
from atrium.engines.collate import collate
from atrium.models.lora import add_lora
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.planning.memory import peak_by_phase
from atrium.train.guard.faults import FaultHandling

ONE_GPU = Machine(num_cores=2, requested_threads=None, has_cuda=True, has_vllm=False, num_gpus=1)
NUM_PROMPTS, GROUP_SIZE, NUM_NEW_TOKENS = 2, 8, 256
ARCHITECTURE = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
LLAMA = {"model_type": "llama", "hidden_size": 160, "num_key_value_heads": 4}
# The proportions of SmolLM2-135M: a large vocabulary, whose logits outweigh the head's gradient.
SMOL = {"model_type": "llama", "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1}
SMOL |= {"vocab_size": 4096, "intermediate_size": 256}
DEEP = {"num_hidden_layers": 8, "intermediate_size": 320}
WIDE = {"num_attention_heads": 8, "num_hidden_layers": 2, "intermediate_size": 768}
HALF, SINGLE = "compute.dtype=bfloat16", "compute.dtype=float32"
AGAIN = "compute.recompute_activations=true"
ADAPTED = "model.lora={rank: 32, alpha: 32, target_modules: all_linear}"
ANCHORED = "algorithm=grpo_kl"

CASES = [
    (LLAMA, (SINGLE, ANCHORED)),
    ({}, (SINGLE, ADAPTED, AGAIN)),
    (SMOL, (SINGLE,)),
]
# A processor that lacks bfloat16 takes half a minute for each.
MORE = [
    ({}, (HALF, ANCHORED)),
    ({}, (HALF, ADAPTED)),
    (LLAMA, (HALF, AGAIN)),
    (DEEP, (HALF, AGAIN)),
    (DEEP, (HALF, ADAPTED, AGAIN)),
    (WIDE, (SINGLE,)),
]


def _composed(shape, overrides):
    """A run whose batch is two micro-batches."""
    keys = ", ".join(f"{key}: {value}" for key, value in (ARCHITECTURE | shape).items())
    return compose(
        [
            "model=qwen3_0_6b", "model.weights=random", f"model.architecture={{{keys}}}", "compute=cuda",
            "compute.compile=false", "optimizer.num_minibatches=1", "rollout=transformers",
            f"rollout.num_prompts={NUM_PROMPTS}", f"rollout.group_size={GROUP_SIZE}",
            f"rollout.max_new_tokens={NUM_NEW_TOKENS}",
            f"compute.micro_batch_tokens={NUM_PROMPTS * GROUP_SIZE * (NUM_NEW_TOKENS + 1) // 2}", *overrides,
        ],
        machine=ONE_GPU,
    )  # fmt: skip


def _planned(config):
    """The bytes of each phase that are planned without those of the engine."""
    items = planned_memory(config, exact_shape(config), num_prompt_tokens=1)
    return peak_by_phase([item for item in items if "engine" not in item.name and "cache" not in item.name])


def _groups():
    """Groups whose prompts have one token, and whose completions are of equal length."""
    rng = np.random.default_rng(0)
    rewards = [[number % 2 for number in range(GROUP_SIZE)]] * NUM_PROMPTS

    def longer(rollout):
        completion = replace(
            rollout.completion,
            token_ids=rng.integers(1, 20, NUM_NEW_TOKENS).astype(np.int32),
            logprobs=-rng.exponential(2.0, NUM_NEW_TOKENS).astype(np.float32),
        )
        return replace(rollout, completion=completion)

    return [
        replace(
            group,
            prompt_token_ids=group.prompt_token_ids[:1],
            rollouts=tuple(longer(rollout) for rollout in group.rollouts),
        )
        for group in random_groups(rewards=rewards)
    ]


@dataclass
class Tracked:
    """The most bytes that were alive in each phase, and the gradients that an update left behind."""

    peaks: dict = field(default_factory=dict)
    gradients: weakref.WeakSet = field(default_factory=weakref.WeakSet)
    num_gradients: int = 0


def _tracked(config):
    """What two steps need, of which the second finds the optimiser's state."""
    found = Tracked()
    policy = build_random_policy(
        config.model.architecture, tokenizer=build_tokenizer(), seed=0, device="cuda"
    )
    if config.model.lora is not None:
        add_lora(policy.model, config.model.lora, seed=0)
    reference = build_reference(config, policy)
    updater = build_updater(config, policy, reference, {}, FaultHandling())
    models = [policy.model] if reference is None else [policy.model, reference.model]
    gc.collect()
    with StorageTracker(parameter for model in models for parameter in model.parameters()) as tracker:
        found.peaks[Phase.START] = tracker.peak
        apply = updater.apply

        def applied(step):
            found.peaks[Phase.UPDATE] = tracker.restart()
            gradients = [one.untyped_storage() for one in updater.optimizer.gradients().values()]
            found.gradients.update(gradients)
            found.num_gradients = len(gradients)
            del gradients
            result = apply(step)
            found.peaks[Phase.OPTIMIZER] = tracker.restart()
            return result

        updater.apply = applied
        groups = _groups()
        for step in (1, 2):
            rows = collate(groups, trains=[True] * NUM_PROMPTS, pad_token_id=0, seed=0, device="cuda")
            run_step(updater, rows, step=step)
            del rows
            gc.collect()
            tracker.restart()
        found.peaks[Phase.SAMPLING] = found.peaks[Phase.EVALUATION] = tracker.peak
        updater.optimizer.state()
        found.peaks[Phase.SAVING] = tracker.peak
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "overrides"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.release) for case in MORE)],
)
def test_every_phase_holds_what_is_planned_to_a_twentieth(shape, overrides):
    config = _composed(shape, overrides)
    planned = _planned(config)
    with pretended_cuda():
        found = _tracked(config)
    assert planned.keys() == found.peaks.keys()
    assert planned == pytest.approx(found.peaks, rel=0.05)
    # Activations decide, and no constant.
    assert planned[Phase.UPDATE] > 1.8 * planned[Phase.OPTIMIZER]
    # An update frees its gradient: what samples and evaluates has its memory.
    assert found.num_gradients > 20
    assert not found.gradients


def test_a_storage_counts_once_and_until_it_is_freed():
    with StorageTracker() as tracker:
        weight = torch.ones(1000, requires_grad=True)
        assert tracker.alive == 4000
        doubled = 2.0 * weight.view(10, 100)
        loss = doubled.exp().sum()
        del doubled
        assert tracker.alive == 4000 + 4000 + 4  # the exponential is kept for the backward pass
        assert tracker.peak == 3 * 4000 + 4
        loss.backward()
        assert tracker.alive == 4000 + 4000 + 4  # in its place is the gradient
        assert tracker.restart() == 3 * 4000 + 8
        assert tracker.peak == tracker.alive
