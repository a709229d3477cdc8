"""Processes: whether one still lives; the signals that ask this one to stop, and a bound on its memory."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What asks any command to end; the second says that its terminal is gone."""

STOP_SIGNALS = (signal.SIGINT, *END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
"""What asks a run to stop; SLURM announces with the last two that a job's time ends."""

CLOCK_TOLERANCE_S = 60.0
"""How far two readings of one process's start may differ when the clock was set in between."""


def is_alive(pid: int, started: float | None = None) -> bool:
    """Whether process `pid` runs and, where `started` is given, is the one that began then."""
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
    """Within the body, call `ask` with each of these signals that arrives.

    Where SIGHUP is ignored it stays so: `nohup` means a command to outlive its terminal.
    """
    before = {
        number: signal.signal(number, lambda number, _: ask(number))
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
    """Within the body, a signal that arrives raises its `error`; gives what raises it again.

    What a handler raises is lost in a finalizer, and a library may swallow it or make an error of its own of
    it. So any exception that leaves the body after a signal is replaced, and the body asks where it goes on.
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
    """Within the body, let allocations fail that take this process so far beyond what it has on entry.

    What is bounded is the address space, of all threads (Linux; macOS does not keep to it).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + more_bytes
    finite = [bound for bound in (wanted, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(finite), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
