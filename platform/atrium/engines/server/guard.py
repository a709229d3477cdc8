"""ASGI middleware for vLLM's server that requires the token in ATRIUM_TOKEN for every path.

vLLM's `--api-key` protects the sampling endpoints only and leaves weights, pauses and worker methods open.
Start a server with `--middleware atrium.engines.server.guard.Guard`.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

TOKEN = "ATRIUM_TOKEN"
"""Environment variable with the token."""

MODEL_PATH = "/atrium/model"
"""Path at which a guarded server returns the configuration of its model."""

FOLDER_PATH = "/atrium/folder"
"""Path at which a guarded server returns whether it can read the weights in the query's `folder`."""

_Scope = MutableMapping[str, Any]
_Send = Callable[[_Scope], Awaitable[None]]
_App = Callable[[_Scope, Any, _Send], Awaitable[None]]


class Guard:
    """Middleware that returns 401 for requests without the token, and adds two paths to vLLM's server.

    `MODEL_PATH` returns the model's configuration. `FOLDER_PATH` returns whether the server can read the
    weights in a folder.
    """

    def __init__(self, app: _App) -> None:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise RuntimeError(
                f"{TOKEN} must contain the token that clients send; set it in the environment and start "
                "the server again"
            )
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: _Scope, receive: Any, send: _Send) -> None:  # noqa: ANN401 - ASGI
        """Check a request's token, then answer the request or pass it to the wrapped application."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, self._expected):
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008})
            return await _answer(send, 401, {"error": "the token is missing or wrong"})
        if scope["path"] == MODEL_PATH:
            config = scope["app"].state.vllm_config.model_config.hf_config
            return await _answer(send, 200, config.to_dict())
        if scope["path"] == FOLDER_PATH:
            (folder,) = parse_qs(scope["query_string"].decode())["folder"]
            is_readable = os.access(Path(folder) / "model.safetensors", os.R_OK)
            return await _answer(send, 200, {"is_readable": is_readable})
        return await self._app(scope, receive, send)


async def _answer(send: _Send, status: int, content: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content, default=str).encode()})
