"""What the transformers engine promises beyond the contract: waves, shared prefill, a shared module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.conftest import (
    CONTEXT_LENGTH,
    LOGPROB_ROUNDING,
    VOCABULARY,
    Policy,
    build_model,
    generate,
    reference_logprobs,
    requests_for,
    transformers_engine,
)
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from atrium.base.errors import EngineError
from atrium.base.records import FinishReason
from atrium.engines.engine import SamplingParams

TEXTS = ["1+2=", "7", "3+4-5+6=", "12+7=", "1+2=", "3+4-5+6-2+9="]
SAMPLING = SamplingParams(max_new_tokens=24)
FIXED = SamplingParams(max_new_tokens=24, ignore_stop=True)


@pytest.fixture
def forwards(policy):
    """The (rows, new tokens, tokens in all) of every forward pass of the model."""
    shapes = []

    def record(module, args, kwargs):
        rows, new = kwargs["input_ids"].shape
        shapes.append((rows, new, kwargs["past_key_values"].get_seq_length() + new))

    handle = policy.model.register_forward_pre_hook(record, with_kwargs=True)
    yield shapes
    handle.remove()


def assert_logprobs_match(model, requests, groups, sampling, atol=LOGPROB_ROUNDING):
    for request, group in zip(requests, groups, strict=True):
        for completion in group:
            token_T1 = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
            reference_TV = reference_logprobs(model, request.prompt_token_ids, completion.token_ids, sampling)
            reference_T = reference_TV.gather(-1, token_T1)[:, 0].numpy()
            np.testing.assert_allclose(completion.logprobs, reference_T, rtol=0.0, atol=atol)


@pytest.mark.parametrize("max_batch_tokens", [1, 37, 100, 250, 1000])
def test_results_do_not_depend_on_the_waves(policy, tokenizer, max_batch_tokens):
    requests = requests_for(TEXTS, tokenizer, group_size=2)
    whole = generate(transformers_engine(policy), requests, SAMPLING)
    waves = generate(transformers_engine(policy, max_batch_tokens), requests, SAMPLING)
    for one, other in zip(sum(whole, ()), sum(waves, ()), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0.0, atol=LOGPROB_ROUNDING)


def test_a_wave_holds_no_more_than_its_tokens(policy, tokenizer, forwards):
    requests = requests_for(TEXTS, tokenizer, group_size=4)
    generate(transformers_engine(policy, 250), requests, FIXED)
    prefills = [index for index, (_, _, total) in enumerate(forwards) if forwards[index][1] == total]
    assert len(prefills) > 2
    for start, end in zip(prefills, [*prefills[1:], len(forwards)], strict=True):
        rows = max(rows for rows, _, _ in forwards[start:end])
        assert rows * (forwards[start][2] + FIXED.max_new_tokens) <= 250


def test_a_row_larger_than_a_wave_runs_alone(policy, tokenizer, forwards):
    generate(transformers_engine(policy, 10), requests_for(TEXTS, tokenizer), SAMPLING)
    assert {rows for rows, _, _ in forwards} == {1}


def test_each_distinct_prompt_is_run_once_for_all_its_completions(policy, tokenizer, forwards):
    requests = requests_for(TEXTS, tokenizer, group_size=5)
    generate(transformers_engine(policy), requests, FIXED)
    longest = max(len(text) for text in TEXTS)
    assert forwards[0] == (len(set(TEXTS)), longest, longest)
    assert [rows for rows, _, _ in forwards[1:]] == [30] * 23


def test_finished_rows_are_dropped(policy, tokenizer, forwards):
    requests = requests_for(TEXTS, tokenizer, group_size=8)
    groups = generate(transformers_engine(policy), requests, SAMPLING)
    num_needed = sum(completion.num_tokens - 1 for completion in sum(groups, ()))
    num_computed = sum(rows for rows, new, _ in forwards if new == 1)
    assert num_needed <= num_computed < 1.15 * num_needed
    assert num_computed < 0.85 * 48 * 23


def test_a_group_is_yielded_before_the_others_are_finished(policy, tokenizer, forwards):
    requests = requests_for(TEXTS, tokenizer, group_size=2)
    num_forwards = []
    lengths = []
    for generation in transformers_engine(policy).generate(requests, SAMPLING):
        num_forwards.append(len(forwards))
        lengths.append(max(completion.num_tokens for completion in generation.completions))
    assert num_forwards == lengths, "token t of a row is drawn after forward pass t"
    assert num_forwards[0] < num_forwards[-1]


def test_all_rows_may_finish_at_the_first_token(policy, tokenizer, forwards):
    engine = transformers_engine(Policy(policy.model, tokenizer, tuple(range(len(VOCABULARY)))))
    groups = generate(engine, requests_for(TEXTS, tokenizer), SAMPLING)
    assert len(forwards) == 1
    for completion in sum(groups, ()):
        assert completion.num_tokens == 1
        assert completion.finish_reason is FinishReason.STOP
        assert completion.text == ""


def test_without_stop_tokens_every_completion_has_the_limit(policy, tokenizer):
    engine = transformers_engine(Policy(policy.model, tokenizer, ()))
    groups = generate(engine, requests_for(TEXTS, tokenizer), SAMPLING)
    assert {completion.num_tokens for completion in sum(groups, ())} == {24}


def test_special_tokens_are_not_in_the_text_and_any_token_may_stop(policy, tokenizer):
    engine = transformers_engine(Policy(policy.model, tokenizer, (VOCABULARY["a"], VOCABULARY["5"])))
    completions = sum(generate(engine, requests_for(TEXTS, tokenizer, 8), SAMPLING), ())
    stopped = [c for c in completions if c.finish_reason is FinishReason.STOP]
    assert {c.token_ids[-1] for c in stopped} == {VOCABULARY["a"], VOCABULARY["5"]}
    names = list(VOCABULARY)
    some_special = False
    for completion in completions:
        tokens = [names[token] for token in completion.token_ids]
        tokens = tokens[:-1] if completion.finish_reason is FinishReason.STOP else tokens
        assert completion.text == "".join(token for token in tokens if len(token) == 1)
        some_special |= "<pad>" in tokens
    assert some_special


def test_completions_longer_than_the_first_reserved_room_are_exact(policy, tokenizer):
    sampling = SamplingParams(max_new_tokens=CONTEXT_LENGTH - 13, ignore_stop=True)
    requests = requests_for(TEXTS, tokenizer, group_size=1)
    groups = generate(transformers_engine(policy), requests, sampling)
    assert {completion.num_tokens for completion in sum(groups, ())} == {CONTEXT_LENGTH - 13}
    assert_logprobs_match(policy.model, requests, groups, sampling)


@pytest.mark.parametrize("texts", [["1+2=", "3-4=", "5+6="], ["1+2="]])
def test_prompts_of_one_length_need_no_padding(policy, tokenizer, texts):
    masks = []
    handle = policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    requests = requests_for(texts, tokenizer)
    groups = generate(transformers_engine(policy), requests, SAMPLING)
    handle.remove()
    assert set(masks) == {None}
    assert_logprobs_match(policy.model, requests, groups, SAMPLING)


SMALL = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
SLIDING = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
OTHER_MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "llama_untied_eager": lambda: LlamaForCausalLM(
        LlamaConfig(**SMALL, tie_word_embeddings=False, attn_implementation="eager")
    ),
    "mistral_sliding_window": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=9)),
    "qwen2_partly_sliding": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SMALL, **SLIDING, use_sliding_window=True)
    ),
    "gemma3_partly_sliding": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SMALL, **SLIDING, head_dim=8, query_pre_attn_scalar=8)
    ),
    "gpt2_absolute_positions": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(VOCABULARY),
            n_positions=CONTEXT_LENGTH,
            n_embd=32,
            n_layer=2,
            n_head=4,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=1,
        )
    ),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_architectures_have_exact_logprobs_too(tokenizer, name):
    torch.manual_seed(0)
    model = OTHER_MODELS[name]().eval()
    requests = requests_for(TEXTS, tokenizer)
    groups = generate(transformers_engine(Policy(model, tokenizer)), requests, SAMPLING)
    assert len({completion.num_tokens for completion in sum(groups, ())}) > 3
    assert_logprobs_match(model, requests, groups, SAMPLING)


def test_a_model_with_recurrent_state_is_refused(tokenizer):
    config = Qwen3NextConfig(
        **SMALL,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=0,
    )
    with pytest.raises(EngineError, match="Qwen3NextForCausalLM has a recurrent state"):
        transformers_engine(Policy(Qwen3NextForCausalLM(config), tokenizer))


def test_half_precision_models_report_float32_logprobs(tokenizer):
    model = build_model(0).to(torch.bfloat16)
    requests = requests_for(TEXTS, tokenizer)
    groups = generate(transformers_engine(Policy(model, tokenizer)), requests, SAMPLING)
    for completion in sum(groups, ()):
        assert completion.logprobs.dtype == np.float32
    assert_logprobs_match(model, requests, groups, SAMPLING, atol=0.5)
    values = np.concatenate([completion.logprobs for completion in sum(groups, ())])
    assert len(set(values.tolist())) > 0.9 * len(values), "rounded to half precision"


def test_the_module_is_left_in_the_modes_it_had(policy, tokenizer):
    model = policy.model.train()
    model.model.layers[1].mlp.eval()
    modes = [module.training for module in model.modules()]
    for _ in transformers_engine(policy).generate(requests_for(TEXTS, tokenizer), SAMPLING):
        assert [module.training for module in model.modules()] == modes
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
    assert model.model.embed_tokens.weight.grad is not None


def test_dropout_is_off_while_sampling(tokenizer):
    model = build_model(0, attention_dropout=0.5).train()
    requests = requests_for(TEXTS, tokenizer)
    groups = generate(transformers_engine(Policy(model, tokenizer)), requests, SAMPLING)
    assert_logprobs_match(model.eval(), requests, groups, SAMPLING)


def test_the_module_is_restored_when_sampling_fails(policy, tokenizer):
    model = policy.model.train()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(EngineError, match=r"logits are not finite.*checkpoint"):
        list(transformers_engine(policy).generate(requests_for(TEXTS, tokenizer), SAMPLING))
    assert all(module.training for module in model.modules())


def test_the_trainers_own_tensors_are_not_copied(policy, tokenizer):
    engine = transformers_engine(policy)
    requests = requests_for(TEXTS, tokenizer)
    before = generate(engine, requests, SAMPLING)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    write_counts = [parameter._version for parameter in policy.model.parameters()]
    engine.update_weights(policy.model.state_dict(), 1)
    assert [parameter._version for parameter in policy.model.parameters()] == write_counts
    after = generate(engine, requests, SAMPLING)
    assert before[0][0].logprobs.tolist() != after[0][0].logprobs.tolist()
    assert_logprobs_match(policy.model, requests, after, SAMPLING)


def test_an_update_while_completions_are_sampled_is_refused(policy, tokenizer):
    engine = transformers_engine(policy)
    generations = engine.generate(requests_for(TEXTS, tokenizer), SAMPLING)
    next(generations)
    engine.update_weights(policy.model.state_dict(), 1)
    with pytest.raises(EngineError, match="from version 0 to 1 during sampling"):
        list(generations)


def test_an_abandoned_generation_does_not_bind_the_engine(policy, tokenizer):
    engine = transformers_engine(policy)
    requests = requests_for(TEXTS, tokenizer)
    next(engine.generate(requests, SAMPLING))
    engine.update_weights(policy.model.state_dict(), 1)
    assert {c.weight_version for c in sum(generate(engine, requests, SAMPLING), ())} == {1}


def test_weights_that_contradict_a_tie_are_refused(policy):
    weights = {name: tensor.clone() for name, tensor in build_model(1).state_dict().items()}
    engine = transformers_engine(policy)
    engine.update_weights(weights, 1)
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    with pytest.raises(EngineError, match=r"must be equal, since the model ties them"):
        engine.update_weights(weights, 2)
    requests = requests_for(TEXTS, policy.tokenizer)
    assert {c.weight_version for c in sum(generate(engine, requests, SAMPLING), ())} == {1}


def test_weights_of_another_shape_are_refused_and_change_nothing(policy):
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    weights = build_model(1, intermediate_size=56).state_dict()
    with pytest.raises(EngineError, match=r"mlp\.\S+ has shape \(56, 32\), expected \(48, 32\)"):
        transformers_engine(policy).update_weights(weights, 1)
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_an_untied_head_is_taken_over(tokenizer):
    model, other = (build_model(seed, tie_word_embeddings=False) for seed in (0, 1))
    engine = transformers_engine(Policy(model, tokenizer))
    engine.update_weights(other.state_dict(), 3)
    requests = requests_for(TEXTS, tokenizer)
    assert_logprobs_match(other, requests, generate(engine, requests, SAMPLING), SAMPLING)
