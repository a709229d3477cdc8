"""Process utilities: a check that a process is running, signal handlers, and a memory limit."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end any command; SIGHUP means that its terminal was closed."""

STOP_SIGNALS = (signal.SIGINT, *END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that stop a run; SLURM sends SIGUSR1 or SIGUSR2 before a job's time limit."""

received: list[int] = []
"""All signals that arrived in the bodies of `stop_requests`, in order."""

CLOCK_TOLERANCE_S = 60.0
"""Tolerance in comparisons of a process's start time, which changes if the clock is adjusted."""


def is_alive(pid: int, started: float | None = None) -> bool:
    """Return whether process `pid` is running.

    If `started` is given (in seconds since 1970), the process must also have started at that time, within
    `CLOCK_TOLERANCE_S`. This excludes a later process that reuses the process id.
    """
    if not 0 < pid < 2**31:
        return False
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return started is None or abs(float(process.create_time()) - started) < CLOCK_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


@contextmanager
def stop_requests(ask: Callable[[int], None], signals: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Call `ask` with the signal's number whenever one of `signals` arrives while the body runs.

    If SIGHUP was already ignored, it stays ignored, because `nohup` must keep a command running after its
    terminal closes.
    """

    def handle(number: int, _: object) -> None:
        received.append(number)
        ask(number)

    before = {
        number: signal.signal(number, handle)
        for number in signals
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_at_once(
    error: Callable[[int], Exception], signals: Sequence[int] = STOP_SIGNALS
) -> Iterator[Callable[[], None]]:
    """Raise `error(signal)` as soon as one of `signals` arrives in the body.

    This exception can be lost: Python ignores it in a finalizer, and a library may catch or replace it. Any
    other exception that leaves the body after a signal is therefore replaced by `error(signal)`. The yielded
    function raises `error(signal)` if a signal has arrived. The body should call it at suitable points.
    """
    arrived: list[int] = []

    def raise_again() -> None:
        if arrived:
            raise error(arrived[0])

    def stop(number: int) -> None:
        arrived.append(number)
        raise_again()

    with stop_requests(stop, signals):
        try:
            yield raise_again
        except Exception:
            raise_again()
            raise


@contextmanager
def bounded_memory(more_bytes: int) -> Iterator[None]:
    """Make allocations in the body fail once the process's memory has grown by more than `more_bytes`.

    The limit applies to the address space of the whole process. macOS does not enforce it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + more_bytes
    finite = [bound for bound in (wanted, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(finite), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
