"""Access control of the dashboard.

Every request needs a known Host header, which prevents access by other websites through DNS rebinding.
Requests that write also need the Origin header of this server and the page's token, which other websites
do not have. The content security policy lets pages load resources from this server only.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
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
    """Middleware that rejects foreign requests and adds security headers to the responses of all others."""

    def __init__(self, app: ASGIApp, *, host_names: Collection[str], token: str) -> None:
        self._app = app
        self._host_names = {name.lower() for name in host_names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed HTTP request on to the application; answer any other with status 403."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await JSONResponse({"error": refusal}, status_code=403)(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Return the reason to reject a request, or None if it is allowed."""
        host = headers.get("host", "")
        if _name_of(f"http://{host}") not in self._host_names:
            return "unknown Host header; see --allow-host"
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return "the Origin header must be that of this server's pages"
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return "the token is missing or expired; reload the page"
        return None


def host_names(bound_to: str, more: Iterable[str] = ()) -> set[str]:
    """Return the names to allow in the Host header: loopback names, `bound_to` and `more`.

    Wildcard addresses (`0.0.0.0` and `::`) are left out.
    """
    return {*LOOPBACK, bound_to, *more} - {"0.0.0.0", "::"}


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
