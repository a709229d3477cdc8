"""Models of the Hub that cannot be had, asked for at a Hub of one's own: one line, before weights load."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub import constants

from atrium.base.errors import ConfigError
from atrium.models.architecture import hub_shape
from atrium.models.policy import load_policy

ANSWERS = {"gated": (403, "GatedRepo"), "missing": (401, "RepoNotFound"), "old": (404, "RevisionNotFound")}
SAYS = {
    "gated": r"'owner/gated': it is gated; request access on its Hub page, then run `hf auth login`",
    "missing": r"'owner/missing': it is neither a local folder nor a model on the Hub that you can access",
    "old": r"'owner/old': it has no such revision; check model\.revision",
}


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.server.asked.append(self.path)
        name = self.path.partition("owner/")[2].partition("/")[0].partition("?")[0]
        status, code = ANSWERS[name]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads, server.asked = True, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_model_that_cannot_be_had_is_one_line_that_says_what_to_do(hub, name):
    for load in (
        lambda source: load_policy(source, dtype=torch.float32, device="cpu"),
        hub_shape,  # what the memory check before loading reads
    ):
        with pytest.raises(ConfigError, match=SAYS[name]) as caught:
            load(f"owner/{name}")
        assert "\n" not in str(caught.value)
    assert hub.asked
    assert not any(path.endswith(".safetensors") for path in hub.asked)
