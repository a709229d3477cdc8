"""The processes of a grader pool: a template with math-verify loaded, and workers forked from it.

`supervisor` starts the template in a fresh interpreter, which shares nothing with the caller. Loading SymPy
takes half a second or more; a fork of the template takes milliseconds, so a killed worker is replaced at
once. The template never computes: it forks, kills and waits for workers on request. When its socket closes,
because the pool was closed or the caller died, the template kills all workers and exits. A worker runs one
job after another, exits after a failed job or when its socket closes, and has limits on memory and CPU time.

Messages pass only between these processes and the caller: requests to the template are five bytes, with a
file descriptor if they request a worker; jobs and replies are lines of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import importlib.util
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrium.base.errors import GraderError

if TYPE_CHECKING:  # the caller's end imports this module, too
    from atrium.grading.verifiers import Verifier

REQUEST = struct.Struct("!ci")
FORK, KILL = b"F", b"K"

_CPU_MARGIN_S = 3.0
_WARM_UP = (  # so that the parser has built its tables before the first fork
    (r"\frac{\sqrt{3}}{2}+x^{2}-1", r"\frac{x+1}{2y}"),
    (r"(3,\frac{\pi}{2})", "(3,90)"),
    ("y=2x+3", r"\text{even}"),
)


def run_template(*, memory_limit_mb: int, timeout_s: float, modules: Sequence[str] = ()) -> None:
    """Serve fork and kill requests from the socket on standard input, until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which then closes the socket
    control = socket.socket(fileno=os.dup(0))
    _preload(modules)
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 1)
        if len(message) < REQUEST.size:
            break
        operation, pid = REQUEST.unpack(message)
        if operation == FORK:
            child = os.fork()
            if child == 0:
                control.close()
                _serve(descriptors[0], memory_limit_mb=memory_limit_mb, timeout_s=timeout_s)
            os.close(descriptors[0])
            children.add(child)
        elif pid in children:
            _kill(pid)
            children.remove(pid)
    for pid in children:
        _kill(pid)
    os._exit(0)


def _kill(pid: int) -> None:
    # Only the template waits for its children, so this id cannot belong to another process.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _preload(modules: Sequence[str]) -> None:
    import logging

    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    from atrium.grading.equivalence import verify

    for gold, answer in _WARM_UP:
        verify(gold, answer)
    for name in modules:
        with contextlib.suppress(ImportError):  # a job that needs it reports the error
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # prevents the collector from touching, and thereby copying, memory that the forks share


def _serve(descriptor: int, *, memory_limit_mb: int, timeout_s: float) -> None:
    """Run the job loop of a worker; never returns."""
    connection = socket.socket(fileno=descriptor)
    limit = memory_limit_mb * 2**20
    with contextlib.suppress(ValueError, OSError):  # not every system allows this limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        connection.sendall(_line({"pid": os.getpid()}))
        for line in connection.makefile("rb"):
            connection.sendall(_line({"begun": True}))
            _limit_cpu(timeout_s + _CPU_MARGIN_S)
            reply = _answer(json.loads(line))
            connection.sendall(_line(reply))
            if "failure" in reply:
                break  # memory may be short or the stack deep: start fresh
    except (OSError, MemoryError):
        os._exit(1)
    os._exit(0)


def _limit_cpu(seconds: float) -> None:
    """Limit this process to `seconds` more of CPU time, so that it ends even if the caller has died."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    verifier: Verifier | None = None
    try:
        from atrium.grading.equivalence import Finding
        from atrium.grading.verifiers import extracted

        verifier = _verifier(json.dumps(job["verifier"]))
        answer = job["answer"] if "answer" in job else extracted(verifier, job["text"])
        if answer is None:
            return {}
        found: object = verifier.compare(job["gold"], answer)
        if not isinstance(found, Finding):
            return {"failure": f"{type(verifier).__name__}.compare must return a Finding, got {found!r}"}
        # Values of NumPy have no form in JSON.
        score = None if found.score is None else float(found.score)
        finding = Finding(bool(found.is_equal), str(found.reason), score)
    except GraderError as error:
        return {"defect": str(error)}
    except MemoryError:
        return {"failure": "out of memory"}
    except RecursionError:
        return {"failure": "nested too deeply"}
    except ImportError as error:
        return {"failure": str(error)}
    except Exception as error:  # every answer gets a verdict, and the reason is recorded
        from atrium.grading.verifiers import place_of

        return {"failure": place_of(error, verifier)}
    return {**asdict(finding), "extracted": answer}


@lru_cache(maxsize=64)
def _verifier(origin: str) -> Verifier:
    """Load the verifier that the JSON text `origin` describes.

    Its module is imported by name if possible, else from its file. Raises `ImportError` if the file has
    changed since the caller loaded it.
    """
    wanted = json.loads(origin)
    name = wanted["module"]
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        spec = importlib.util.spec_from_file_location(name, wanted["file"])
        if spec is None or spec.loader is None:
            raise ImportError(f"{wanted['file']} is not a Python module; move the grader to a module")
        if wanted["sha256"] not in (None, hashlib.sha256(Path(wanted["file"]).read_bytes()).hexdigest()):
            raise ImportError(f"{wanted['file']} changed after it was loaded; start again")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    kind = getattr(importlib.import_module(name), wanted["name"])
    verifier: Verifier = kind.model_validate_json(json.dumps(wanted["settings"]))
    return verifier


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
