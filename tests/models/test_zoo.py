"""Many architectures, from a folder to samples and updates: three computations give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.models.zoo import FAST, PACKED, PADDED, REFUSED, zoo_policy
from tests.saved_policy import save_policy

from atrium.base.errors import AtriumError
from atrium.base.records import Problem, Rollout, RolloutGroup, Verdict, VerdictKind
from atrium.engines.collate import collate
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.transformers_engine import TransformersEngine
from atrium.models.policy import load_policy
from atrium.train.update.forward import PolicyForward
from atrium.train.update.forward_check import check_model, find_packing

TEMPERATURE = 0.7
PROMPT_LENGTHS = (3, 11, 20)
NEW_TOKENS = 20
MOST = 1e-4
"""Nats that engine, trainer and a plain forward pass may differ by."""
SLOW = sorted({*PACKED, *PADDED} - {*FAST})


def engine_of(policy):
    return TransformersEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
    )


def sampled_rows(policy):
    """Rows of two completions each of prompts of several lengths, which the engine pads."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 28, length).astype(np.int32) for length in PROMPT_LENGTHS]
    requests = [
        GenerationRequest(prompt_token_ids=prompt, sample_seeds=(2 * place, 2 * place + 1))
        for place, prompt in enumerate(prompts)
    ]
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=TEMPERATURE)
    groups = []
    for generation in engine_of(policy).generate(requests, sampling):
        rollouts = tuple(
            Rollout(
                sample_index=place,
                completion=completion,
                verdict=Verdict(kind=VerdictKind.INCORRECT, reason=""),
                reward=0.0,
            )
            for place, completion in enumerate(generation.completions)
        )
        prompt = prompts[generation.request_index]
        problem = Problem(problem_id=str(len(groups)), question="", answer="")
        groups.append(RolloutGroup(problem=problem, prompt_token_ids=prompt, rollouts=rollouts))
    return collate(
        groups, trains=[True] * len(groups), pad_token_id=policy.pad_token_id, seed=0, device="cpu"
    )


def check_architecture(model_type, folder):
    built = zoo_policy(model_type)
    save_policy(built, folder / "first")
    policy = load_policy(folder / "first", dtype=torch.float32, device="cpu")
    assert policy.context == built.context
    forward = PolicyForward(policy.model, temperature=TEMPERATURE)
    longest = max(PROMPT_LENGTHS) + NEW_TOKENS
    check_model(forward, longest)
    finding = find_packing(forward, longest)
    assert (finding.fault is None) == (model_type in PACKED), finding
    forward.packing = finding.fault is None
    rows = sampled_rows(policy)
    with torch.no_grad():
        trainer_BT = forward(rows, entropy="none").logprob_BT
        for row in range(len(rows.num_tokens_B)):
            alone = rows.select(np.array([row]))
            plain_T = forward.whole_logprobs(alone)
            num_tokens = len(plain_T)
            engine_T = alone.batch.rollout_logprob_BT[0, :num_tokens]
            assert (engine_T - plain_T).abs().max() < MOST
            assert (trainer_BT[row, :num_tokens] - plain_T).abs().max() < MOST
    save_policy(policy, folder / "second")
    first, second = (load_file(folder / name / "model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("model_type", FAST)
def test_engine_trainer_and_plain_pass_agree(model_type, tmp_path):
    check_architecture(model_type, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("model_type", SLOW)
def test_engine_trainer_and_plain_pass_agree_on_further_architectures(model_type, tmp_path):
    check_architecture(model_type, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("model_type", REFUSED)
def test_an_architecture_that_cannot_be_used_is_refused_in_one_line(model_type):
    policy = zoo_policy(model_type)
    forward = PolicyForward(policy.model, temperature=TEMPERATURE)
    with pytest.raises(AtriumError, match=REFUSED[model_type][1]) as refused:
        engine_of(policy) and check_model(forward, 40)
    assert "\n" not in str(refused.value)
