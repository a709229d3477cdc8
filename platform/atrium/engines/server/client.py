"""An HTTP client of a vLLM server, for its samples, weights and state."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from atrium.base.errors import reason_of
from atrium.engines.server.guard import FOLDER_PATH, MODEL_PATH
from atrium.engines.vllm_environment import SERVES, serves

# uvicorn closes idle connections after 5 s.
_KEEP_IDLE_S, _CONNECT_S = 2.0, 5.0
# A completion may take hours, so hung servers are detected by token counts instead of this timeout.
_ANSWER_S = 24 * 3600.0
_MODEL_NAME = "policy"
_SHAPE = (
    *("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "tie_word_embeddings", "rms_norm_eps"),
)
_FROM_FILES = {"load_config": {"load_format": "safetensors"}}
_COUNTERS = ("generation_tokens", "prompt_tokens", "num_preemptions")
_NOT_FINITE = -9999.0  # the response of vLLM's server for a log-probability of NaN or minus infinity
_ADVICE = "start it with the command that `atrium engine-command` prints"


class ServerError(Exception):
    """Raised if a server rejects a request or returns an invalid response."""


class UnfitServerError(ServerError):
    """Raised if a server responds but must not be used; restarting it does not help."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Required properties of a server: the model's configuration and dtype, and the least context length.

    The context length is in tokens.
    """

    model: Mapping[str, Any]
    dtype: str
    context_length: int


class ServerClient:
    """A client of the server at `address`: a URL, or `unix:` followed by the path of a socket."""

    def __init__(self, address: str, token: str) -> None:
        path = address.removeprefix("unix:")
        transport = httpx.AsyncHTTPTransport(
            uds=path if path != address else None,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=256, keepalive_expiry=_KEEP_IDLE_S
            ),
        )
        self._client = httpx.AsyncClient(
            transport=transport,
            base_url="http://server" if path != address else address,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            headers={"Authorization": f"Bearer {token}"},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def obstacle(self) -> str | None:
        """Return why the server is not ready, or None if it is.

        Raises `UnfitServerError` if the server rejects the access token, if the address redirects to another
        one, or if no vLLM server is at the address.
        """
        try:
            answer = await self._client.get("/health", timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            return reason_of(error)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise UnfitServerError("the server rejects the token; set ATRIUM_TOKEN to the server's token")
        if answer.is_redirect:
            raise UnfitServerError(
                f"the address redirects to {answer.headers.get('location')}; use the server's own address"
            )
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise UnfitServerError(
                "/health returned 404, so no vLLM server is at this address; correct the address"
            )
        return None if answer.status_code == httpx.codes.OK else f"/health returned {answer.status_code}"

    async def check(self, expected: Expected) -> Mapping[str, str | int | float]:
        """Check that the server fits the run, and return its properties by name.

        The properties are vLLM's version, and the limits of the cache and of batches. Raises
        `UnfitServerError` if the server does not fit.
        """
        open_answer = await self._client.get("/weight_info", headers={"Authorization": ""})
        if open_answer.status_code != httpx.codes.UNAUTHORIZED:
            raise UnfitServerError(f"the server accepts requests without a token; {_ADVICE}")
        version = str((await self._json("GET", "/version"))["version"])
        if not serves(version):
            expected_versions = " to ".join(f"{major}.{minor}" for major, minor in SERVES)
            raise UnfitServerError(
                f"the server runs vLLM {version}, expected {expected_versions}; install a supported version"
            )
        info = (await self._json("GET", "/server_info", config_format="json"))["vllm_config"]
        _check_model(await self._json("GET", MODEL_PATH), info["model_config"], expected)
        cache, batch = info["cache_config"], info["scheduler_config"]
        num_tokens = cache["num_gpu_blocks"] * cache["block_size"]
        return {
            "engine": "vllm",
            "version": version,
            "cache_tokens": num_tokens,
            "cache_longest_completions": round(num_tokens / info["model_config"]["max_model_len"], 2),
            "max_num_batched_tokens": batch["max_num_batched_tokens"],
            "max_num_seqs": batch["max_num_seqs"],
        }

    async def sample(self, token_ids: Sequence[int], parameters: Mapping[str, Any]) -> SimpleNamespace:
        """Sample one completion, and return its `token_ids`, `logprobs`, `finish_reason` and `spans`.

        `spans` lists (weight version, start, end) for each range of tokens. Raises `ServerError` for an
        invalid response.
        """
        body = {"model": _MODEL_NAME, "token_ids": token_ids, "sampling_params": parameters}
        answer = await self._json("POST", "/inference/v1/generate", body)
        try:
            (choice,) = answer["choices"]
            stated = [one["logprob"] for one in choice["logprobs"]["content"]]
            logprobs = [math.nan if one is None or one <= _NOT_FINITE else one for one in stated]
            spans = [
                (int(span["version"]), int(span["start"]), int(span["end"]))
                for span in choice["weight_versions"]
            ]
            token_ids = [int(token) for token in choice["token_ids"]]
            reason = choice["finish_reason"]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(
                f"a response of the server lacks a required field ({type(error).__name__}: {error})"
            ) from error
        return SimpleNamespace(
            token_ids=token_ids,
            logprobs=SimpleNamespace(logprobs=logprobs),
            finish_reason=reason,
            spans=spans,
        )

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause the server while the `with` block loads weights.

        Afterward, unfinished requests continue with the new weights. Their cached keys and values are
        cleared, since a cache that mixes two sets of weights is valid for neither.
        """
        await self._json("POST", "/pause", mode="keep", clear_cache="true")
        try:
            yield
        finally:
            await self._json("POST", "/resume")

    async def take_weights(self, folder: Path, version: int) -> None:
        """Make the server load the weights in `folder` as `version`, and clear its cache.

        Raises `UnfitServerError` if the server cannot read the folder.
        """
        # vLLM's engine crashes on a folder that it cannot read.
        if not (await self._json("GET", FOLDER_PATH, folder=str(folder)))["is_readable"]:
            raise UnfitServerError(
                f"the server cannot read {folder}; set rollout.weights_dir to a folder that the server "
                "and the trainer share"
            )
        # Servers start with placeholder weights; from now on, vLLM must load weights from files.
        load = {"method": "update_config", "kwargs": {"overrides": _FROM_FILES}}
        await self._json("POST", "/collective_rpc", load)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._json("POST", "/collective_rpc", reload)
        await self._clear_cache()
        await self._json("POST", "/update_weight_version", {"new_version": str(version)})

    async def num_processes(self) -> int:
        """Return the number of processes over which the server distributes its weights."""
        return int((await self._json("GET", "/get_world_size"))["world_size"])

    async def join_group(self, init_info: Mapping[str, Any]) -> None:
        """Make the server join the trainer's NCCL group, and return once the server has joined.

        The server first leaves any earlier group.
        """
        await self._json("POST", "/shutdown_weight_transfer_engine")
        await self._json("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    async def receive_weights(self, update_info: Mapping[str, Any], version: int) -> None:
        """Make the server receive the weights of `version`, which the trainer sends over NCCL."""
        await self._json("POST", "/start_weight_update")
        await self._json("POST", "/update_weights", {"update_info": update_info})
        await self._clear_cache()
        await self._json("POST", "/finish_weight_update", {"weight_version": str(version)})

    async def _clear_cache(self) -> None:
        answer = await self._json("POST", "/reset_prefix_cache", reset_running_requests="true")
        if not answer.get("success"):
            raise ServerError("the server could not clear its cache of the old weights")

    async def counters(self, timeout_s: float = _CONNECT_S) -> dict[str, float]:
        """Return vLLM's counts of tokens and preemptions since the server's start, by name.

        A count that the server does not report is 0.
        """
        answer = await self._client.get("/metrics", timeout=timeout_s)
        found = re.findall(rf"(?m)^vllm:({'|'.join(_COUNTERS)})_total\S* (\S+)$", answer.text)
        return {name: sum(float(value) for key, value in found if key == name) for name in _COUNTERS}

    async def _json(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        answer = await self._client.request(method, path, json=body, params=query)
        if answer.status_code != httpx.codes.OK:
            said = " ".join(answer.text.split())[:300]
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise UnfitServerError(f"{path} returned 404: {said}; {_ADVICE}")
            raise ServerError(f"{path} returned {answer.status_code}: {said}")
        try:
            found = answer.json()
        except ValueError as error:
            raise ServerError(f"the server did not return JSON for {path}; {_ADVICE}") from error
        if not isinstance(found, dict):
            raise ServerError(f"{path} did not return a JSON object")
        return found


def _check_model(model: Mapping[str, Any], config: Mapping[str, Any], expected: Expected) -> None:
    """Raise `UnfitServerError` if the server's model or settings differ from the expected ones.

    `model` is the configuration of the server's model, and `config` contains vLLM's settings for this model.
    A longer context than expected is allowed.
    """
    for name in _SHAPE:
        if model.get(name) != expected.model.get(name):
            raise UnfitServerError(
                f"the server's model has {name}={model.get(name)}, expected {expected.model.get(name)}; "
                "start the server with the policy's model"
            )
    wanted = {
        "dtype": f"torch.{expected.dtype}",
        "logprobs_mode": "processed_logprobs",
        "served_model_name": _MODEL_NAME,
        "generation_config": "vllm",
    }
    for name, value in wanted.items():
        if config.get(name) != value:
            raise UnfitServerError(f"the server has {name}={config.get(name)}, expected {value}; {_ADVICE}")
    if config["max_model_len"] < expected.context_length:
        raise UnfitServerError(
            f"the server has max_model_len={config['max_model_len']}, expected at least "
            f"{expected.context_length}; {_ADVICE}"
        )
