"""Execution of a function in a daemon thread, with a future for its result or error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_background(work: Callable[[], _T], name: str) -> Future[_T]:
    """Start `work` in a daemon thread named `name`, and return a future for its result or error.

    Unlike the threads of `ThreadPoolExecutor`, a daemon thread does not delay the exit of the process.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised by `future.result`
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
