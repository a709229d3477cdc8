"""A Hub of one's own: a local server that speaks the file endpoints of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, how it misbehaves, and what it was asked.

    `drops` holds how often a file's transfer breaks off half-way. Files in `redirected` are served from
    another address, as large files are.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    redirected: set[str] = field(default_factory=set)
    drops: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""

    def add(self, repository, name, content, *, is_large=False):
        data = content if isinstance(content, bytes) else content.encode()
        self.files.setdefault(repository, {})[name] = data
        if is_large:
            self.redirected.add(name)

    def downloads(self):
        """The ranges in which files were fetched; None for a whole one."""
        return [
            bytes_range
            for method, path, bytes_range in self.requests
            if method == "GET" and "api" not in path
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *arguments):
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def _answer(self):
        path = unquote(self.path.partition("?")[0]).strip("/")
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if path.startswith("api/datasets/"):
            self._describe(path.removeprefix("api/datasets/").partition("/revision/")[0])
        elif path.startswith("datasets/"):
            repository, _, rest = path.removeprefix("datasets/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            self._resolve(repository, revision, name)
        elif path.startswith("storage/"):
            repository, _, name = path.removeprefix("storage/").partition("//")
            self._send(name, self.hub.files[repository][name])
        else:
            self._fail(404, "EntryNotFound")

    def _describe(self, repository):
        if repository not in self.hub.files:
            self._fail(404, "RepoNotFound")
            return
        siblings = [{"rfilename": name} for name in self.hub.files[repository]]
        body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _resolve(self, repository, revision, name):
        if repository not in self.hub.files:
            return self._fail(401, "RepoNotFound")
        if repository in self.hub.gated:
            return self._fail(403, "GatedRepo")
        if revision not in ("main", COMMIT):
            return self._fail(404, "RevisionNotFound")
        if name not in self.hub.files[repository]:
            return self._fail(404, "EntryNotFound")
        data = self.hub.files[repository][name]
        if name in self.hub.redirected:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.address}/storage/{repository}//{name}")
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self._send(name, data)

    def _send(self, name, data):
        start, status = 0, 200
        if (wanted := self.headers.get("Range")) is not None:
            start, status = int(wanted.removeprefix("bytes=").partition("-")[0]), 206
        body = data[start:]
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.drops.get(name, 0) > 0:
            self.hub.drops[name] -= 1
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(body)

    def _fail(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hub(monkeypatch):
    """A running server that `HF_ENDPOINT` names; the Hub's library may use the network to reach it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.hub = Hub(address=f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", server.hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # what has come is kept in such pieces
        for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        yield server.hub
        server.shutdown()
        thread.join()
