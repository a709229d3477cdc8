"""A small random Qwen3 policy over a character vocabulary, and the engines that the contract covers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.scripted_engine import ScriptedCompletion, ScriptedEngine
from tests.vllm.settings import vllm_settings
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from atrium.base.processes import is_alive
from atrium.base.seeding import derive_seed
from atrium.engines.engine import Engine, GenerationRequest, SamplingParams
from atrium.engines.transformers_engine import TransformersEngine

SPECIAL_TOKENS = ["<pad>", "<eos>", "<end>", "<unk>"]
CHARACTERS = list("0123456789+-=;.") + [chr(code) for code in range(ord("a"), ord("q"))]
VOCABULARY = {token: index for index, token in enumerate(SPECIAL_TOKENS + CHARACTERS)}
PAD, STOPS = 0, (1, 2)
CONTEXT_LENGTH = 160
VLLM_CACHE = Path(__file__).resolve().parents[2] / "runs" / ".cache" / "vllm-tests"


def build_tokenizer():
    tokenizer = Tokenizer(models.WordLevel(vocab=VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<end>"],
        clean_up_tokenization_spaces=False,
    )


SETTINGS = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "eos_token_id": STOPS[0],
    "bos_token_id": None,
}


def build_model(seed, **changes):
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**(SETTINGS | changes))).eval()


def logit_rounding(config):
    """What float32 loses of a logit, relative to the largest, whatever the order of its sums.

    A sum of n products is wrong by about sqrt(n) roundings. Six products of a layer follow each other
    (states, scores, mixed values, output, gate, down), and then the head; each adds its own.
    """
    width = max(config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim)
    return (6 * config.num_hidden_layers + 1) * math.sqrt(width) * torch.finfo(torch.float32).eps


LOGPROB_ROUNDING = 2 * 10.0 * logit_rounding(Qwen3Config(**SETTINGS))
"""The same for a log-probability, the difference of two numbers of the size of logits, which are below 10."""


@dataclass(frozen=True)
class Policy:
    """What an engine is built for."""

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerFast
    stop_token_ids: tuple[int, ...] = STOPS
    pad_token_id: int = PAD
    context_length: int = CONTEXT_LENGTH


def transformers_engine(policy, max_batch_tokens=None, unit_samples=None):
    return TransformersEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
        max_batch_tokens=max_batch_tokens,
        unit_samples=unit_samples,
    )


def transformers_engine_in_small_waves(policy):
    return transformers_engine(policy, max_batch_tokens=450)


def transformers_engine_without_fused_steps(policy):
    # A hook must see every forward pass of the module, so the engine runs the module itself.
    policy.model.register_forward_hook(lambda module, args, output: None)
    return transformers_engine(policy)


VLLM_ENGINES = []


def vllm_engine(policy):
    """The engine of this process, started once, with the policy's weights."""
    if not VLLM_ENGINES or VLLM_ENGINES[-1]._engine is None:
        from atrium.engines.vllm_engine import VllmEngine
        from atrium.engines.vllm_start import Place

        device = "cuda" if torch.cuda.is_available() else "cpu"
        VLLM_ENGINES.append(
            VllmEngine(
                model=policy.model,
                tokenizer=policy.tokenizer,
                stop_token_ids=policy.stop_token_ids,
                settings=vllm_settings(),
                place=Place(device=device, dtype="float32", context_length=policy.context_length),
                cache_dir=VLLM_CACHE,
            )
        )
    VLLM_ENGINES[-1].update_weights(policy.model.state_dict(), 0)
    return VLLM_ENGINES[-1]


def pids_of(process):
    """The ids of a server's processes, its first one's first."""
    if process._process is None:
        return []
    try:
        leader = psutil.Process(process._process.pid)
        return [leader.pid, *(child.pid for child in leader.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def are_gone(pids):
    """Whether all these processes end, soon."""
    deadline = time.monotonic() + 60.0
    while (alive := any(is_alive(pid) for pid in pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive


def scripted_engine(policy):
    def script(prompt, seed):
        draw = np.random.default_rng(derive_seed(seed, "script", *prompt.tolist()))
        num_characters = int(draw.integers(30, 60)) if seed % 3 else int(draw.integers(0, 12))
        text = "".join(draw.choice(CHARACTERS, num_characters))
        return ScriptedCompletion(text=text)

    return ScriptedEngine(
        script,
        encode=lambda text: policy.tokenizer.encode(text, add_special_tokens=False),
        decode=policy.tokenizer.decode,
        stop_token_ids=policy.stop_token_ids,
        context_length=policy.context_length,
    )


MODEL_ENGINES: dict[str, Callable[[Policy], Engine]] = {
    "transformers": transformers_engine,
    "transformers_in_small_waves": transformers_engine_in_small_waves,
    "transformers_without_fused_steps": transformers_engine_without_fused_steps,
    "vllm": vllm_engine,
}
"""Engines that sample from a model's distribution: the whole contract."""

ENGINES: dict[str, Callable[[Policy], Engine]] = {**MODEL_ENGINES, "scripted": scripted_engine}
"""All engines: the part of the contract that needs no model."""


def _params(engines):
    """The names of engines; those that need more are left to `make test-full` and `make test-vllm`."""
    marks = {"vllm": [pytest.mark.vllm]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in engines]


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def policy(tokenizer):
    return Policy(model=build_model(0), tokenizer=tokenizer)


@pytest.fixture(params=_params(MODEL_ENGINES))
def build_engine(request):
    return MODEL_ENGINES[request.param]


@pytest.fixture
def engine(build_engine, policy):
    return build_engine(policy)


@pytest.fixture(params=_params(ENGINES))
def any_engine(request, policy):
    return ENGINES[request.param](policy)


def requests_for(texts, tokenizer, group_size=3):
    """One request per text, with its own seeds."""
    return [
        GenerationRequest(
            prompt_token_ids=np.array(tokenizer.encode(text, add_special_tokens=False), np.int32),
            sample_seeds=tuple(derive_seed(7, "sample", number, place) for place in range(group_size)),
        )
        for number, text in enumerate(texts)
    ]


def generate(engine, requests, sampling):
    """The completions of each request, in the order of the requests."""
    generations = list(engine.generate(requests, sampling))
    assert sorted(generation.request_index for generation in generations) == [*range(len(requests))]
    by_index = {generation.request_index: generation for generation in generations}
    return [by_index[index].completions for index in range(len(requests))]


def reference_logprobs(model, prompt, token_ids, sampling, stop_token_ids=STOPS):
    """The log-probabilities of every token [T, V] by one forward pass without padding or cache.

    Written apart from the engines: float64 from the logits on, cuts by sorting whole rows.
    """
    sequence = torch.tensor(np.concatenate([prompt, token_ids])[None, :-1].astype(np.int64))
    with torch.no_grad():
        logits = model(sequence, use_cache=False).logits[0, len(prompt) - 1 :].double()
    for position, row in enumerate(logits):
        penalise(row, prompt.tolist(), token_ids[:position].tolist(), sampling)
    if sampling.ignore_stop:
        logits[:, list(stop_token_ids)] = -torch.inf
    return torch.stack([reference_distribution(row, sampling) for row in logits])


def penalise(logits, prompt, completion, sampling):
    """Change one token's logits [V] for the tokens that stand before it, token by token."""
    for token in {*prompt, *completion}:
        logits[token] *= sampling.repetition_penalty ** (-1 if logits[token] > 0 else 1)
    for token in completion:
        logits[token] -= sampling.frequency_penalty
    for token in set(completion):
        logits[token] -= sampling.presence_penalty


def reference_distribution(logits, sampling: SamplingParams):
    """The log-probabilities [V] of one token, cut token by token."""
    scores = logits.double() / (sampling.temperature or 1)
    if sampling.temperature == 0:
        return scores.log_softmax(-1)
    order = scores.argsort(descending=True, stable=True).tolist()
    kept = [t for t in order if sampling.top_k is None or scores[t] >= scores[order[: sampling.top_k][-1]]]
    probabilities = scores[kept].softmax(-1).tolist()
    mass, nucleus = 0.0, []
    for token, probability in zip(kept, probabilities, strict=True):
        if mass >= sampling.top_p < 1:
            break
        nucleus.append(token)
        mass += probability
    cut = torch.full_like(scores, -torch.inf)
    cut[nucleus] = scores[nucleus].log_softmax(-1)
    return cut
