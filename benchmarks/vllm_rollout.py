"""Tokens per second of Atrium's vLLM engine beside bare vLLM, and the time of a weight update, as JSON.

The same vLLM in one process is driven in turns: by Atrium's engine (`atrium`), and by vLLM's own loop, once
with the parameters that training needs, a seed and the log-probability of every token (`bare`), once with
neither (`plain`). Prompts and lengths are the same. Ratios are medians over rounds, each of whose three
measurements are neighbours in time. Run it with the Python of an environment that has vLLM, e.g.
.venv-vllm/bin/python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import machine

if TYPE_CHECKING:
    from atrium.engines.engine import GenerationRequest
    from atrium.engines.vllm_engine import VllmEngine
    from atrium.models.policy import Policy

CACHE = Path(__file__).resolve().parents[1] / "runs" / ".cache"


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    add = options.add_argument
    add("--model", help="a transformers folder or a Hub id; a random Qwen3 of 3M parameters by default")
    add("--architecture", help="or a file of conf/model, whose architecture gets random weights")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--dtype", default="float32", choices=("float32", "bfloat16"))
    add("--prompts", type=int, default=16, help="prompts (default %(default)s)")
    add("--group", type=int, default=8, help="completions of each (default %(default)s)")
    add("--prompt-tokens", type=int, default=48, help="tokens of a prompt (default %(default)s)")
    add("--max-new-tokens", type=int, default=64, help="tokens of a completion (default %(default)s)")
    add("--max-num-seqs", type=int, default=128, help="completions decoded at once (default %(default)s)")
    add("--kv-cache-mb", type=int, default=256, help="size of the cache (default %(default)s)")
    add("--rounds", type=int, default=7, help="measurements of each (default %(default)s)")
    add("--graphs", action="store_true", help="with CUDA graphs and compilation")
    return options.parse_args()


def build_policy(args: argparse.Namespace) -> Policy:
    import torch

    from atrium.config.compose import compose
    from atrium.models.policy import build_random_policy, load_policy
    from atrium.models.tiny import build_tokenizer

    if args.model:
        return load_policy(args.model, dtype=torch.float32, device=args.device)
    if args.architecture:
        found = compose([f"model={args.architecture}", "model.weights=random"]).model.architecture
        return build_random_policy(found, tokenizer=build_tokenizer(), seed=0, device=args.device)
    architecture = {
        "model_type": "qwen3",
        "vocab_size": 512,
        "hidden_size": 192,
        "intermediate_size": 576,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0, device=args.device)


def start(args: argparse.Namespace, policy: Policy) -> VllmEngine:
    from atrium.engines.settings import VllmSettings
    from atrium.engines.vllm_engine import VllmEngine
    from atrium.engines.vllm_start import Place

    return VllmEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=(),  # so that every completion has all its tokens
        settings=VllmSettings(
            engine="vllm",
            num_prompts=args.prompts,
            group_size=args.group,
            max_new_tokens=args.max_new_tokens,
            temperature=1.0,
            context_length=None,
            max_num_seqs=args.max_num_seqs,
            gpu_memory_fraction=0.5,
            kv_cache_mb=args.kv_cache_mb,
            kv_cache_dtype="auto",
            enforce_eager=not args.graphs,
            sleep_level=None,
            num_speculative_tokens=None,
            start_timeout_s=1800.0,
            step_timeout_s=300.0,
        ),
        place=Place(
            device=args.device,
            dtype=args.dtype,
            context_length=min(policy.context_length, 2 * (args.prompt_tokens + args.max_new_tokens)),
        ),
        cache_dir=CACHE,
    )


def bare(
    engine: VllmEngine, requests: list[GenerationRequest], max_tokens: int, **parameters: int | bool
) -> int:
    """Drive the same vLLM as its own `LLM.generate` does; the number of tokens."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    vllm: Any = engine._engine
    seeded = parameters.pop("seeded", False)
    for number, request in enumerate(requests):
        for seed in request.sample_seeds:
            vllm.add_request(
                f"bare-{number}-{seed}",
                TokensPrompt(prompt_token_ids=request.prompt_token_ids.tolist()),
                SamplingParams(
                    max_tokens=max_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    seed=seed if seeded else None,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                    **parameters,
                ),
            )
    num_tokens = 0
    while vllm.has_unfinished_requests():
        num_tokens += sum(len(output.outputs[0].token_ids) for output in vllm.step() if output.finished)
    return num_tokens


def measured(run: Callable[[], int]) -> tuple[float, float]:
    """Tokens per second of wall clock, and per second of this process's CPU time."""
    started, cpu_started = time.perf_counter(), time.process_time()
    num_tokens = run()
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return num_tokens / wall_s, num_tokens / cpu_s


def main() -> None:
    args = parse()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from atrium.engines.vllm_environment import set_environment

    set_environment(args.device, enforce_eager=not args.graphs, cache_dir=CACHE)
    import numpy as np

    from atrium.engines.engine import GenerationRequest, SamplingParams

    policy = build_policy(args)
    started = time.perf_counter()
    engine = start(args, policy)
    start_s = time.perf_counter() - started
    draw = np.random.default_rng(0)
    vocabulary = policy.model.config.vocab_size
    requests = [
        GenerationRequest(
            prompt_token_ids=draw.integers(5, vocabulary, args.prompt_tokens).astype(np.int32),
            sample_seeds=tuple(range(args.group)),
        )
        for _ in range(args.prompts)
    ]
    sampling = SamplingParams(max_new_tokens=args.max_new_tokens)

    def by_atrium() -> int:
        generations = engine.generate(requests, sampling)
        return sum(one.num_tokens for generation in generations for one in generation.completions)

    runs: dict[str, Callable[[], int]] = {
        "atrium": by_atrium,
        "bare": lambda: bare(
            engine, requests, args.max_new_tokens, logprobs=0, flat_logprobs=True, seeded=True
        ),
        "plain": lambda: bare(engine, requests, args.max_new_tokens),
    }
    for run in runs.values():  # kernels and caches warm up
        run()
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    sync_s = []
    for number in range(args.rounds):
        names = list(runs)
        for name in names[number % 3 :] + names[: number % 3]:
            tokens_per_s, tokens_per_cpu_s = measured(runs[name])
            wall[name].append(tokens_per_s)
            cpu[name].append(tokens_per_cpu_s)
        started = time.perf_counter()
        engine.update_weights(policy.model.state_dict(), number + 1)
        sync_s.append(time.perf_counter() - started)
    described = dict(engine.facts.described)
    engine.close()
    record: dict[str, object] = {
        "impl": f"vllm {described['version']}",
        "model_runner": described["model_runner"],
        "parameters": policy.num_parameters,
        "device": args.device,
        "dtype": args.dtype,
        "completions": args.prompts * args.group,
        "tokens_each": args.max_new_tokens,
        "start_s": round(start_s, 2),
        "sync_s_med": round(statistics.median(sync_s), 4),
    }
    for unit, found in (("per_s", wall), ("per_cpu_s", cpu)):
        record |= {f"{name}_{unit}": round(statistics.median(values)) for name, values in found.items()}
        for other in ("bare", "plain"):
            ratios = [ours / theirs for ours, theirs in zip(found["atrium"], found[other], strict=True)]
            record[f"atrium_to_{other}_{unit}"] = round(statistics.median(ratios), 3)
    print(json.dumps(record | machine(args.device)))


if __name__ == "__main__":
    main()
