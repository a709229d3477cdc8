"""Who may talk to the dashboard: pages of this server, by its own names, with its token where they write.

The check of the Host header keeps a web site from reaching the server under a name of its own (DNS
rebinding); Origin and the token keep it from writing. The policy for content lets the page load from this
server only.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-atrium-token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SAFE_METHODS = ("GET", "HEAD")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Middleware that refuses foreign requests and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, *, host_names: Collection[str], token: str) -> None:
        self._app = app
        self._host_names = {name.lower() for name in host_names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await _refuse(send, refusal)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Why the request is refused, or None."""
        host = headers.get("host", "")
        if _name_of(f"http://{host}") not in self._host_names:
            return "the Host header names another server than this one"
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return "the request comes from another origin than this server's pages"
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return "the token is missing or of an earlier start; reload the page"
        return None


def host_names(bound_to: str, more: Iterable[str] = ()) -> set[str]:
    """The names under which the server may be addressed."""
    return {*LOOPBACK, bound_to, *more} - {"0.0.0.0", "::"}


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _refuse(send: Send, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
