"""A stand-in for vLLM's server: its endpoints as Atrium calls them, with completions keyed by the seed.

`python -m tests.server_stand_in --uds PATH ...` takes the arguments of the real server. A contract test in
`tests/vllm` compares the two.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from atrium.engines.server.guard import Guard
from atrium.engines.server.plugin import end_with_trainer

VERSION = "0.32.0"


def sampled(token_ids, parameters, version):
    """Tokens and log-probabilities that follow from prompt, seed and weights alone."""
    key = json.dumps([token_ids, parameters["seed"], version]).encode()
    draws = hashlib.sha256(key).digest()
    num_tokens = min(parameters["max_tokens"], 1 + draws[0] % 8)
    tokens = [3 + draw % 8 for draw in draws[1 : 1 + num_tokens]]
    return tokens, [-(1 + draw) / 256 for draw in draws[1 : 1 + num_tokens]]


def choice_of(body, state, first_version):
    """The answer to a request that began with other weights than `state` may have now."""
    tokens, logprobs = sampled(body["token_ids"], body["sampling_params"], state.version)
    state.num_tokens += len(tokens)
    spans = [{"version": state.version, "start": 0, "end": len(tokens)}]
    if state.version != first_version and len(tokens) > 1:
        spans = [{"version": first_version, "start": 0, "end": 1}, {**spans[0], "start": 1}]
    wrong = Path(os.environ.get("STAND_IN_WRONG", "/nowhere"))
    taken = wrong.with_suffix(f".{os.getpid()}")
    with suppress(FileNotFoundError):  # one of several servers gets it
        wrong.rename(taken)
        if taken.read_text() == "logprob":
            logprobs[-1] = -9999.0
        else:
            spans[0]["version"] = "99"
    return {
        "token_ids": tokens,
        "finish_reason": "length",
        "logprobs": {"content": [{"logprob": logprob} for logprob in logprobs]},
        "weight_versions": spans,
    }


def weight_routes(state):
    """The endpoints that change weights."""

    async def rpc(request):
        body = await request.json()
        folder = body.get("kwargs", {}).get("weights_path")
        if folder is not None and not (Path(folder) / "model.safetensors").is_file():
            return JSONResponse({"error": f"Cannot find any model weights with {folder}"}, 500)
        return JSONResponse({"results": [None]})

    async def pause(request):
        assert dict(request.query_params) == {"mode": "keep", "clear_cache": "true"}
        state.is_paused = True
        return JSONResponse({"status": "paused"})

    async def resume(request):
        state.is_paused = False
        return JSONResponse({"status": "resumed"})

    async def label(request):
        state.version = (await request.json())["new_version"]
        return JSONResponse({"success": True})

    handlers = {"pause": pause, "resume": resume, "collective_rpc": rpc, "update_weight_version": label}
    return [Route(f"/{name}", handler, methods=["POST"]) for name, handler in handlers.items()]


def application(arguments):
    """The endpoints, with the state of one server."""
    state = SimpleNamespace(version="default", num_tokens=0, is_paused=False)

    async def generate(request):
        body = await request.json()
        parameters = body["sampling_params"]
        if not 0 <= parameters["temperature"] <= 2:
            return JSONResponse({"error": "temperature must be in [0, 2]"}, 400)
        first_version = state.version
        await asyncio.sleep(float(os.environ.get("STAND_IN_DELAY_S", "0.005")))
        while state.is_paused:
            await asyncio.sleep(0.002)
        return JSONResponse({"choices": [choice_of(body, state, first_version)]})

    def info(request):
        model = {
            "dtype": f"torch.{arguments.dtype}",
            "logprobs_mode": "processed_logprobs",
            "served_model_name": "policy",
            "generation_config": "vllm",
            "max_model_len": int(arguments.max_model_len),
        }
        cache = {"num_gpu_blocks": 4, "block_size": 128}
        batch = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
        config = {"model_config": model, "cache_config": cache, "scheduler_config": batch}
        return JSONResponse({"vllm_config": config})

    def counted(request):
        return PlainTextResponse(f'vllm:generation_tokens_total{{engine="0"}} {state.num_tokens}.0\n')

    version = os.environ.get("STAND_IN_VERSION", VERSION)
    app = Starlette(
        routes=[
            Route("/health", lambda request: PlainTextResponse("")),
            Route("/version", lambda request: JSONResponse({"version": version})),
            Route("/weight_info", lambda request: JSONResponse({"weight_version": state.version})),
            Route("/server_info", info),
            Route("/metrics", counted),
            Route("/inference/v1/generate", generate, methods=["POST"]),
            *weight_routes(state),
            Route("/reset_prefix_cache", lambda request: JSONResponse({"success": True}), methods=["POST"]),
        ]
    )
    config = json.loads((Path(arguments.model) / "config.json").read_text(encoding="utf-8"))
    hf_config = SimpleNamespace(to_dict=lambda: config)
    app.state.vllm_config = SimpleNamespace(model_config=SimpleNamespace(hf_config=hf_config))
    if arguments.middleware:
        app.add_middleware(Guard)
    return app


def main():
    parser = argparse.ArgumentParser()
    for name in ("--uds", "--model", "--dtype", "--max-model-len", "--middleware", "--host", "--port"):
        parser.add_argument(name)
    arguments, _ = parser.parse_known_args()
    end_with_trainer()
    address = {"uds": arguments.uds} if arguments.uds else {"host": "127.0.0.1", "port": int(arguments.port)}
    uvicorn.run(application(arguments), log_level="error", **address)


if __name__ == "__main__":
    main()
