from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
import uvicorn

from atrium.base.errors import ConfigError
from atrium.cli.app import main as atrium
from atrium.cli.dashboard import main
from atrium.views.dashboard.connections import PunctualProtocol, QuietServer
from atrium.views.dashboard.serving import listening


def test_a_missing_folder_is_named_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        main(["--runs-dir", str(tmp_path / "none")])


def test_a_port_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected 0 to 65535, got 70000"):
        main(["--runs-dir", str(tmp_path), "--port", "70000"])


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_refused_as_it_means_every_address(tmp_path, monkeypatch, host):
    monkeypatch.setattr(
        "uvicorn.Server.run", lambda server, sockets: None
    )  # else a server that starts runs for ever
    with pytest.raises(ConfigError, match="must not be empty, since an empty address means all addresses"):
        main(["--runs-dir", str(tmp_path), "--host", host])


def test_help_says_what_it_writes(capsys):
    assert atrium(["dashboard", "--help"]) == 0
    assert "the dashboard writes only notes" in capsys.readouterr().out


def test_a_taken_port_gives_way_to_the_next():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listening("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port


def test_an_address_of_another_machine_is_explained():
    with pytest.raises(ConfigError, match="--host"):
        listening("no.such.host.invalid", 8600)


def test_an_address_that_is_not_local_is_not_reported_as_taken_ports():
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1: .*; give an address of this machine"):
        listening("192.0.2.1", 8600)


def test_ports_that_cannot_be_used_are_reported_with_the_reason():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 65_535))
        taken.listen()
        with pytest.raises(ConfigError, match=r"cannot be used: .* in use; choose"):
            listening("127.0.0.1", 65_535)


@contextmanager
def served(answer, listener, **settings):
    """The address of a server that gives this answer, and the server."""
    config = uvicorn.Config(answer, lifespan="off", log_level="critical", **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(timeout=60)
    assert not thread.is_alive()


def holds_none(server):
    """Wait until the server holds no connection."""
    deadline = time.monotonic() + 60
    while server.server_state.connections:
        assert time.monotonic() < deadline, "it holds what nobody uses"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HT", b"PATCH / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_a_client_that_never_ends_its_request_is_cut_off(monkeypatch, begun):
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    monkeypatch.setattr(PunctualProtocol, "REQUEST_S", 0.3)
    with (
        listening("127.0.0.1", 0) as listener,
        served(answer, listener, http=PunctualProtocol) as server,
        socket.create_connection(listener.getsockname(), timeout=60) as patient,
        socket.create_connection(listener.getsockname(), timeout=60) as late,
    ):
        patient.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert patient.recv(4) == b"HTTP"
        late.sendall(begun)
        while late.recv(65_536):  # until its end
            pass
        patient.setblocking(False)
        while True:  # the one whose answer takes long is there still
            try:
                assert patient.recv(65_536)
            except BlockingIOError:
                break
        patient.close()
        holds_none(server)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot watch clients")
def test_a_client_that_takes_nothing_of_an_answer_is_cut_off():
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10_000):  # more than the buffers of all systems
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})

    with (
        listening("127.0.0.1", 0, stalled_s=0.5) as listener,
        served(answer, listener) as server,
        socket.create_connection(listener.getsockname(), timeout=60) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert client.recv(4) == b"HTTP"
        holds_none(server)


def test_a_server_that_is_stopped_while_it_computes_logs_nothing(caplog):
    computes, ended = threading.Event(), threading.Event()

    async def answer(scope, receive, send):
        computes.set()
        await asyncio.to_thread(ended.wait, 30)

    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
    config = uvicorn.Config(answer, lifespan="off", log_config=None, timeout_graceful_shutdown=0)
    server = QuietServer(config)
    with listening("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert computes.wait(30)
            server.handle_exit(signal.SIGINT, None)
            client.recv(100)
            ended.set()
            thread.join(timeout=30)
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
    assert not thread.is_alive()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.full
def test_it_serves_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "atrium", "dashboard", "--runs-dir", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        address = re.search(r"http://127\.0\.0\.1:\d+/", "".join(lines))[0]
        for _ in range(1000):
            try:
                page = urllib.request.urlopen(address, timeout=30).read()
                break
            except urllib.error.URLError:  # it says where it will listen before it does
                time.sleep(0.1)
        assert b"atrium-token" in page
        news = urllib.request.urlopen(f"{address}api/events", timeout=30)
        assert news.readline().startswith(b"data:")
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, 130)
    assert complaints == ""
