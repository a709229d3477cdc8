"""A rank that shares one vLLM with another, as torchrun starts it: `sharing.py FOLDER`.

Samples with two sets of weights, whose head is not tied, and then breaks the rules of sharing. What the rank
found is written to `rank-N.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from tests.vllm.test_vllm_engine import DEVICE, build, mean_gap, request

from atrium.base.errors import EngineError
from atrium.engines.engine import SamplingParams
from atrium.models.policy import build_random_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tokenizer
from atrium.train.ranks.connected_ranks import ConnectedRanks


def untied_policy(seed):
    architecture = TinySettings(head_dim=32).architecture | {"tie_word_embeddings": False}
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=seed, dtype=torch.float32)


def message_of(work):
    """The one line that it ends in."""
    try:
        work()
    except EngineError as error:
        return str(error)
    return None


def main(folder):
    torch.set_num_threads(1)
    ranks = ConnectedRanks(os.environ, device=DEVICE, timeout_s=120, ranks_per_engine=2)
    policies = [untied_policy(seed) for seed in (0, 1)]
    engine = build(policies[0], tensor_parallel=2)
    found = {"part": engine._engine.collective_rpc(part)[0], "gaps": [], "tokens": []}
    requests, sampling = [request(*range(8)), request(8), request(9, 10)], SamplingParams(max_new_tokens=30)
    for version, policy in enumerate(policies):
        engine.update_weights(policy.weights(), version)
        generations = sorted(engine.generate(requests, sampling), key=lambda g: g.request_index)
        completions = [completion for generation in generations for completion in generation.completions]
        found["gaps"].append(mean_gap(policy.model, completions))
        found["tokens"].append([completion.token_ids.tolist() for completion in completions])

    def append():
        growing = list(requests)
        generations = engine.generate(growing, sampling)
        next(generations)
        growing.append(request(11))
        next(generations)

    found["appended"] = message_of(append)
    found["afterwards"] = message_of(lambda: engine.generate(requests, sampling))
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    engine.close()
    ranks.close()


def part(worker):
    """What vLLM has in this process: rows of the vocabulary, query heads and key-value heads."""
    model = worker.get_model().model
    attention = model.layers[0].self_attn
    return [model.embed_tokens.weight.shape[0], attention.num_heads, attention.num_kv_heads]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
