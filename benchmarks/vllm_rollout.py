"""Measure tokens per second of Atrium's vLLM engine and of bare vLLM, and the time of a weight update.

The same vLLM instance runs in turns in three ways: with Atrium's engine (`atrium`), with vLLM's own loop and
the parameters that training needs, a seed and the log-probability of every token (`bare`), and with vLLM's
own loop without these parameters (`plain`). Prompts and lengths are the same. Ratios are medians over rounds;
the three measurements of a round directly follow each other. The output is JSON. Run the program with the
Python of an environment that has vLLM, e.g. .venv-vllm/bin/python.
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
    add("--model", help="a transformers folder or a Hub id (default: a random Qwen3 of 3M parameters)")
    add("--architecture", help="a file of conf/model; its architecture gets random weights")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--dtype", default="float32", choices=("float32", "bfloat16"))
    add("--prompts", type=int, default=16, help="number of prompts (default %(default)s)")
    add("--group", type=int, default=8, help="completions per prompt (default %(default)s)")
    add("--prompt-tokens", type=int, default=48, help="tokens per prompt (default %(default)s)")
    add("--max-new-tokens", type=int, default=64, help="tokens per completion (default %(default)s)")
    add("--max-num-seqs", type=int, default=128, help="completions decoded at once (default %(default)s)")
    add(
        "--kv-cache-mb", type=int, default=256, help="size of the key-value cache in MB (default %(default)s)"
    )
    add("--rounds", type=int, default=7, help="measurements per arm (default %(default)s)")
    add("--graphs", action="store_true", help="use CUDA graphs and compilation")
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
        stop_token_ids=(),  # so that every completion has the maximum length
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
    """Sample with the same vLLM as `LLM.generate` does, and return the number of tokens."""
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
    """Return the tokens per wall-clock second, and per CPU second of this process."""
    started, cpu_started = time.perf_counter(), time.process_time()
    num_tokens = run()
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return num_tokens / wall_s, num_tokens / cpu_s


def build_requests(args: argparse.Namespace, vocabulary: int) -> list[GenerationRequest]:
    """Return requests with prompts of random tokens."""
    import numpy as np

    from atrium.engines.engine import GenerationRequest

    draw = np.random.default_rng(0)
    return [
        GenerationRequest(
            prompt_token_ids=draw.integers(5, vocabulary, args.prompt_tokens).astype(np.int32),
            sample_seeds=tuple(range(args.group)),
        )
        for _ in range(args.prompts)
    ]


def measure(
    args: argparse.Namespace, engine: VllmEngine, policy: Policy
) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Return speeds by unit and way of sampling, one for each round, and the seconds of weight updates."""
    from atrium.engines.engine import SamplingParams

    requests = build_requests(args, policy.model.config.vocab_size)
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
    for run in runs.values():  # warm up kernels and caches
        run()
    speeds = {unit: {name: [] for name in runs} for unit in ("per_s", "per_cpu_s")}
    sync_s = []
    for number in range(args.rounds):
        names = list(runs)
        for name in names[number % 3 :] + names[: number % 3]:
            for unit, speed in zip(speeds, measured(runs[name]), strict=True):
                speeds[unit][name].append(speed)
        started = time.perf_counter()
        engine.update_weights(policy.model.state_dict(), number + 1)
        sync_s.append(time.perf_counter() - started)
    return speeds, sync_s


def main() -> None:
    args = parse()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from atrium.engines.vllm_environment import set_environment

    set_environment(args.device, enforce_eager=not args.graphs, cache_dir=CACHE)
    policy = build_policy(args)
    started = time.perf_counter()
    engine = start(args, policy)
    start_s = time.perf_counter() - started
    speeds, sync_s = measure(args, engine, policy)
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
    for unit, found in speeds.items():
        record |= {f"{name}_{unit}": round(statistics.median(values)) for name, values in found.items()}
        for other in ("bare", "plain"):
            ratios = [ours / theirs for ours, theirs in zip(found["atrium"], found[other], strict=True)]
            record[f"atrium_to_{other}_{unit}"] = round(statistics.median(ratios), 3)
    print(json.dumps(record | machine(args.device)))


if __name__ == "__main__":
    main()
