"""Products that decoding made, taken over by the update: equal to computing them, never by other weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.rollout.conftest import PAD, Policy, build_model, build_tokenizer, logit_rounding
from torch.utils.flop_counter import FlopCounterMode

from atrium.models import kept_products
from atrium.models.kept_products import KeptProducts
from atrium.records import Problem, Rollout, RolloutGroup, Verdict, VerdictKind
from atrium.rollout import qwen3_decoder
from atrium.rollout.collate import collate
from atrium.rollout.engine import GenerationRequest, SamplingParams
from atrium.rollout.transformers_engine import TransformersEngine
from atrium.train.logprobs import PolicyForward
from atrium.train.memory_plan import MemorySettings, ModelDimensions, kept_bytes

PROMPTS = ([5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15])
GROUP_SIZE = 5
FOR_UPDATE = SamplingParams(max_new_tokens=24, for_update=True)


class Sampled:
    """A policy, an engine that keeps products, and completions that it sampled."""

    def __init__(self, *, sampling=FOR_UPDATE, max_batch_tokens=None, **changes):
        self.model = build_model(0, **changes)
        self.kept = KeptProducts()
        policy = Policy(model=self.model, tokenizer=build_tokenizer())
        self.engine = TransformersEngine(
            model=self.model,
            tokenizer=policy.tokenizer,
            stop_token_ids=policy.stop_token_ids,
            pad_token_id=PAD,
            context_length=policy.context_length,
            max_batch_tokens=max_batch_tokens,
            kept=self.kept,
        )
        self.groups = self.sample(sampling)

    def sample(self, sampling):
        requests = [
            GenerationRequest(
                prompt_token_ids=np.array(prompt, np.int32),
                sample_seeds=tuple(range(number * GROUP_SIZE, (number + 1) * GROUP_SIZE)),
            )
            for number, prompt in enumerate(PROMPTS)
        ]
        done = {found.request_index: found.completions for found in self.engine.generate(requests, sampling)}
        verdict = Verdict(kind=VerdictKind.INCORRECT, reason="")
        return [
            RolloutGroup(
                problem=Problem(problem_id=str(number), question="", answer=""),
                prompt_token_ids=request.prompt_token_ids,
                rollouts=tuple(
                    Rollout(sample_index=index, completion=completion, verdict=verdict, reward=0.0)
                    for index, completion in enumerate(done[number])
                ),
            )
            for number, request in enumerate(requests)
        ]

    def rows(self, groups=None):
        groups = self.groups if groups is None else groups
        return collate(groups, trains=[True] * len(groups), pad_token_id=PAD, seed=0, device="cpu")

    def gradients(self, parts, *, kept):
        """Gradients from log-probabilities and entropies, and the operations of products before them."""
        forward = PolicyForward(self.model, temperature=1.0, kept=self.kept if kept else None)
        self.model.zero_grad()
        flops = 0
        for rows in parts:
            with FlopCounterMode(display=False) as counter:
                policy = forward(rows, entropy="gradient")
            counts = counter.get_flop_counts()["Global"]
            flops += counts[torch.ops.aten.mm] + counts.get(torch.ops.aten.addmm, 0)
            weight_BT = torch.linspace(-1.0, 2.0, policy.logprob_BT.numel()).view(policy.logprob_BT.shape)
            (policy.logprob_BT * weight_BT + 0.3 * policy.entropy_BT).sum().backward()
        return {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}, flops


@pytest.fixture(params=["rows", "columns"])
def layout(request, monkeypatch):
    """Narrow models decode by rows, wide ones by columns; a small one is taken for either."""
    if request.param == "columns":
        monkeypatch.setattr(qwen3_decoder, "LARGE_HIDDEN_SIZE", 1)


def assert_equal_to_computed(sampled, parts, *, most=0.4):
    """Gradients with what is kept are those without, and the forward pass has made few of the products."""
    known, few = sampled.gradients(parts, kept=True)
    computed, all_ = sampled.gradients(parts, kept=False)
    # Forwards and backwards, on both sides.
    bound = (
        4 * logit_rounding(sampled.model.config) * max(float(one.abs().max()) for one in computed.values())
    )
    for name, gradient in computed.items():
        assert (known[name] - gradient).abs().max() < bound, name
    assert few < most * all_


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("max_batch_tokens", [None, 150])
def test_an_update_with_kept_products_equals_one_that_computes_them(max_batch_tokens):
    sampled = Sampled(max_batch_tokens=max_batch_tokens)
    lengths = {rollout.completion.num_tokens for group in sampled.groups for rollout in group.rollouts}
    assert len(lengths) > 3, "rows are to end at different steps"
    assert_equal_to_computed(sampled, [sampled.rows()])


@pytest.mark.usefixtures("layout")
def test_micro_batches_take_their_own_rows_from_the_same_waves():
    sampled = Sampled()
    rows = sampled.rows()
    order = np.random.default_rng(0).permutation(rows.batch.num_rows)
    assert_equal_to_computed(sampled, [rows.select(order[:6]), rows.select(order[6:])], most=0.5)


def test_rows_that_are_not_kept_are_computed_beside_those_that_are():
    sampled = Sampled()
    others = sampled.sample(SamplingParams(max_new_tokens=20, temperature=2.0))
    mixed = [sampled.groups[0], others[1], sampled.groups[2]]
    assert_equal_to_computed(sampled, [sampled.rows(mixed)], most=0.8)


def test_equal_completions_are_kept_each_for_itself():
    sampled = Sampled(sampling=SamplingParams(max_new_tokens=12, temperature=0.0, for_update=True))
    first = sampled.groups[0].rollouts
    assert {rollout.completion.token_ids.tobytes() for rollout in first} == {
        first[0].completion.token_ids.tobytes()
    }
    assert_equal_to_computed(sampled, [sampled.rows()], most=0.5)


def _computes_everything(sampled):
    rows = sampled.rows()
    _, flops = sampled.gradients([rows], kept=True)
    _, all_ = sampled.gradients([rows], kept=False)
    return flops == all_


def test_new_weights_make_what_was_kept_forgotten():
    sampled = Sampled()
    weights = {name: weight * 1.1 for name, weight in sampled.model.state_dict().items()}
    sampled.engine.update_weights(weights, 1)
    assert _computes_everything(sampled)


def test_what_is_sampled_for_no_update_is_not_kept():
    assert _computes_everything(Sampled(sampling=SamplingParams(max_new_tokens=24)))


def test_without_room_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(kept_products, "MAX_BYTES", 1000)
    assert _computes_everything(Sampled())


@pytest.mark.usefixtures("layout")
def test_the_tokens_that_there_is_no_room_for_are_computed(monkeypatch):
    monkeypatch.setattr(kept_products, "MAX_BYTES", 500_000)
    sampled = Sampled()
    assert_equal_to_computed(sampled, [sampled.rows()], most=0.8)


def test_each_completion_is_given_away_once():
    sampled = Sampled()
    sampled.gradients([sampled.rows()], kept=True)
    assert _computes_everything(sampled)


def test_a_pass_without_gradient_leaves_everything_to_the_update():
    sampled = Sampled()
    with torch.no_grad():
        PolicyForward(sampled.model, temperature=1.0, kept=sampled.kept)(sampled.rows(), entropy="value")
    assert_equal_to_computed(sampled, [sampled.rows()])


def test_activations_that_are_computed_again_are_not_taken_from_what_is_kept():
    sampled = Sampled()
    forward = PolicyForward(sampled.model, temperature=1.0, kept=sampled.kept, recomputes=True)
    forward(sampled.rows(), entropy="value").logprob_BT.sum().backward()
    assert_equal_to_computed(sampled, [sampled.rows()])


def _whole_wave(sampled):
    """The wave of all completions, which are taken."""
    rows = sampled.rows()
    place_BT = torch.arange(rows.batch.mask_BT.shape[1] - 1).expand(rows.batch.num_rows, -1)
    known = sampled.kept.take(
        rows.token_BL, rows.num_prompt_tokens_B, rows.num_tokens_B, place_BT, place_BT.shape[1]
    )
    (wave,) = known.waves
    return wave


def test_a_wave_without_rows_to_take_gives_its_products_away():
    wave = _whole_wave(Sampled())
    assert wave.block(0)
    assert not wave.block(0)
    assert wave.block(1)


def test_what_is_kept_is_what_atrium_memory_predicts():
    sampled = Sampled()
    wave, config = _whole_wave(sampled), sampled.model.config
    parts = [part for index in range(config.num_hidden_layers) for step in wave.block(index) for part in step]
    model = ModelDimensions(
        model_type="qwen3",
        num_parameters=1,
        num_tensors=1,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        feed_forward_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        vocabulary_size=config.vocab_size,
    )
    settings = MemorySettings(
        compute_dtype="float32", micro_batch_tokens=1, batch_tokens=wave.num_tokens, cache_tokens=1
    )
    assert sum(part.nbytes for part in parts) == kept_bytes(model, settings)
