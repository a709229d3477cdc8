"""vLLM's server as a process on this machine: command, environment, start and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from atrium.base.plain_files import append_plain
from atrium.engines.server.guard import TOKEN
from atrium.engines.server.plugin import FOLDERS, TRAINER, identity, shared_memory_of
from atrium.engines.settings import VllmSettings
from atrium.engines.vllm_environment import environment
from atrium.engines.vllm_start import Place, batching, engine_arguments

SERVER_MODULE = "vllm.entrypoints.openai.api_server"  # `vllm serve` fails with the build for CPUs
_GUARD = "atrium.engines.server.guard.Guard"
_TERMINATE_S, _TAIL_LINES, _TAIL_BYTES = 10.0, 3, 4000
_DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # enables the endpoints for weights


def server_arguments(
    model: str, settings: VllmSettings, place: Place, address: Sequence[str]
) -> tuple[str, ...]:
    """Return the command-line arguments of a vLLM server that computes like the engine inside the trainer.

    `address` contains arguments to place first, such as `--host` and `--port`.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "served_model_name": "policy",
        "enable_scale_out": True,
        "disable_uvicorn_access_log": True,
        "middleware": _GUARD,
        "load_format": "dummy",
        "tensor_parallel_size": settings.tensor_parallel,
        "weight_transfer_config": {"backend": "nccl"} if settings.sends_weights else None,
        **engine_arguments(settings, place),
        **batching(settings, place),
    }
    return (*address, *(part for item in arguments.items() for part in _flag(*item)))


def _flag(name: str, value: object) -> tuple[str, ...]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return ()
    if isinstance(value, bool):
        return (flag,) if value else (f"--no-{flag.removeprefix('--')}",)
    return (flag, json.dumps(value) if isinstance(value, dict) else str(value))


def server_environment(settings: VllmSettings, place: Place, cache_dir: Path, threads: int) -> dict[str, str]:
    """Return the environment variables, by name, that a vLLM server needs besides its access token.

    `threads` is the value of `OMP_NUM_THREADS`.
    """
    own = environment(place.device, enforce_eager=settings.enforce_eager, cache_dir=cache_dir)
    return {**own, **_DEVELOPMENT, "OMP_NUM_THREADS": str(threads)}


class ServerProcess:
    """A vLLM server process that listens on a Unix socket in `folder`.

    `number` is part of the socket's name. Other users must not have access to `folder`. `arguments` and
    `variables` are the results of `server_arguments` and `server_environment`. `device` becomes
    CUDA_VISIBLE_DEVICES; None leaves that variable unchanged. `folder` and the folders in `shared` are
    deleted after the trainer has exited. `module` is the Python module that runs the server.
    """

    def __init__(
        self,
        number: int,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str],
        folder: Path,
        shared: Sequence[Path],
        token: str,
        log: Path,
        device: str | None,
        module: str = SERVER_MODULE,
    ) -> None:
        self.log = log
        self._socket = folder / f"{number}.sock"
        self._command = [
            *(sys.executable, "-m", module),
            *("--uds", str(self._socket), *arguments),
        ]
        self._environment = {
            **os.environ,
            **variables,
            TOKEN: token,
            TRAINER: identity(os.getpid()),
            FOLDERS: os.pathsep.join(str(path) for path in (folder, *shared)),
            "VLLM_RPC_BASE_PATH": str(folder),
            **({} if device is None else {"CUDA_VISIBLE_DEVICES": device}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._is_over = threading.Lock(), False

    @property
    def address(self) -> str:
        """The server's address, as `ServerClient` expects it."""
        return f"unix:{self._socket}"

    def start(self) -> None:
        """Start or restart the server; do nothing after `end`."""
        with self._lock, append_plain(self.log) as log:
            self._end(kill=True)
            if self._is_over:
                return
            self._socket.unlink(missing_ok=True)
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server, or None if it is running, was never started, or was ended by `end`."""
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        """End all processes of the server and prevent restarts. Harmless when called twice."""
        with self._lock:
            self._is_over = True
            self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        group = _group(process.pid)
        memory = {path for pid in group for path in shared_memory_of(pid)}
        if not kill:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATE_S)
        for pid in group:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for path in memory:
            path.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return the last lines of the server's log as one line.

        The result is empty if the log cannot be read.
        """
        with suppress(OSError):
            text = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return " | ".join(lines[-_TAIL_LINES:])[:500]
        return ""


def _group(session: int) -> list[int]:
    """Return the ids of all processes in the session with the id `session`."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session:
                found.append(process.pid)
    return found
