"""Ranks started by torchrun: connected by gloo on the host, and by NCCL on GPUs.

Every wait has a timeout. Ranks record their phases and failures in torchrun's store, so that an error can
name the rank and the phase that the other ranks waited for.
"""

from __future__ import annotations

import copy
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from atrium.base.errors import ConfigError, RankError
from atrium.base.processes import is_alive
from atrium.train.ranks.ranks import Ranks

_T = TypeVar("_T")
_POLL_S = 0.1
_PREPARATION_TIMEOUTS = 6
"""Number of timeouts that rank 0 may spend on preparation (download, warm-up) before others give up."""


class ConnectedRanks(Ranks):
    """The ranks of a run with several processes, and this process's connections to the others.

    Parameters
    ----------
    environment
        torchrun's variables: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`.
    device
        `cpu` or `cuda`; with `cuda`, this process uses the GPU of its local rank.
    timeout_s
        Timeout for waiting for other ranks, in seconds.
    ranks_per_engine
        Number of consecutive ranks that share one engine; must divide the number of ranks per node.

    Raises `ConfigError` if the variables are incomplete, if a local rank has no GPU of its own, or if the
    ranks use different kinds of GPUs. Raises `RankError` if the other ranks cannot be reached in time.
    """

    def __init__(
        self, environment: Mapping[str, str], *, device: str, timeout_s: float, ranks_per_engine: int = 1
    ) -> None:
        self.rank, self.size, self.local_rank, self.local_size = _numbers(environment)
        self.ranks_per_engine = ranks_per_engine
        self.waited_s = 0.0
        self._timeout = timedelta(seconds=timeout_s)
        self._phase, self._num_phases = "joining the run", 0
        if device == "cuda":
            _take_gpu(self.local_rank)
        # torchrun's store outlives restarted ranks; earlier entries must not count.
        attempt = environment.get("ATRIUM_ATTEMPT") or environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        try:
            store, _, _ = next(rendezvous("env://", timeout=self._timeout))
            store.set_timeout(self._timeout)
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo",
                store=PrefixStore(f"atrium/ranks/{attempt}", store),
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
                device_id=torch.device("cuda", self.local_rank) if device == "cuda" else None,
            )
            self._store = PrefixStore(f"atrium/notes/{attempt}", store)
            # Separate connections: a thread that saves must not interfere with the loop's exchanges.
            self._host = self._connected()
            self.checkpoint_group = self._connected()
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"rank {self.rank} could not connect to the other {self.size - 1} within {timeout_s:g} s "
                f"at {environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')} "
                f"({_first_line(error)}); check that all ranks start and can reach that address"
            ) from error
        self._note("process", f"{socket.gethostname()} {os.getpid()}")
        self._check_devices(device)

    def on_own_connections(self) -> ConnectedRanks:
        """Return a copy that uses separate connections, for a concurrent thread.

        The copy counts its own waiting time. All ranks must call this in the same order.
        """
        apart = copy.copy(self)
        apart.waited_s = 0.0
        apart._host = self._bounded(self._connected)
        return apart

    def _connected(self) -> dist.ProcessGroup:
        """Return a new gloo process group of all ranks."""
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=self._timeout)
        return group

    def gather(self, record: Any) -> list[Any]:  # noqa: ANN401 - whatever JSON can hold
        """Return every rank's record, in the order of the ranks. Records must be JSON-serializable."""
        return [json.loads(found) for found in self.gather_bytes(json.dumps(record).encode())]

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return every rank's bytes, in the order of the ranks."""
        return self._bounded(lambda: self._gathered(content))

    def _gathered(self, content: bytes) -> list[bytes]:
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor(len(content)), group=self._host)
        longest = max(1, *(int(size) for size in sizes))
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else 0
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, own, group=self._host)
        return [part[: int(size)].numpy().tobytes() for part, size in zip(found, sizes, strict=True)]

    def from_first(self, record: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """Return the record that rank 0 passed, on every rank."""
        return self.gather(record if self.is_first else None)[0]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on at least one rank."""
        count = torch.tensor(int(flag))
        self._bounded(lambda: dist.all_reduce(count, group=self._host))
        return bool(count)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over ranks, in place, on its device; return the tensor."""
        group = self._host if tensor.device.type == "cpu" else None
        self._bounded(lambda: dist.all_reduce(tensor, group=group))
        return tensor

    def scatter(self, own: Tensor, parts: Sequence[Tensor]) -> None:
        """Fill the contiguous tensor `own` with this rank's part.

        Only rank 0 passes `parts`, one for each rank.
        """
        group = self._host if own.device.type == "cpu" else None
        sent = [part.contiguous().flatten().view(torch.uint8) for part in parts]
        received = own.view(-1).view(torch.uint8)  # bytes: gloo does not know every dtype
        self._bounded(lambda: dist.scatter(received, sent or None, src=0, group=group))

    @contextmanager
    def first_alone(self, what: str) -> Iterator[None]:
        """Run the block on rank 0, and on the other ranks after rank 0 has left it.

        `what` names the work in error messages. It must differ from the names of all earlier blocks, since
        the other ranks would not wait for a second block of the same name. Raises `RankError` if rank 0 fails
        or takes too long.
        """
        self.enter(what)
        done = f"done/{what}"
        if not self.is_first:
            self._await(done, what)
        yield
        if self.is_first:
            self._store.set(done, "1")

    def _await(self, key: str, what: str) -> None:
        started = time.monotonic()
        limit_s = _PREPARATION_TIMEOUTS * self._timeout.total_seconds()
        while not self._store.check([key]):
            if self._store.check(["failed/0"]):
                raise RankError(
                    f"rank {self.rank} lost the connection to the others in {what}, since rank 0 failed: "
                    f"{self._store.get('failed/0').decode()}"
                )
            if time.monotonic() - started > limit_s:
                raise RankError(
                    f"rank {self.rank} received nothing from rank 0 within {limit_s:g} s in {what}; "
                    "check the log of rank 0"
                )
            time.sleep(_POLL_S)
        self.waited_s += time.monotonic() - started

    def enter(self, phase: str) -> None:
        """Announce this rank's current phase."""
        self._phase = phase
        self._num_phases += 1
        self._note("phase", f"{self._num_phases} {phase}")

    def close(self, failure: str | None = None) -> None:
        """Leave the process group, or report a failure to the other ranks.

        `failure` is the reason of a failure. If it is given, the other ranks can read it, and this rank stays
        in the process group.
        """
        if failure is not None:
            self._note("failed", failure)
        if dist.is_initialized() and failure is None:
            dist.destroy_process_group()

    def explained(self, error: BaseException) -> BaseException:
        """Return `error`, or a `RankError` that names the missing rank if a lost connection caused it."""
        if not _is_of_connection(error):
            return error
        return RankError(
            f"rank {self.rank} lost the others in {self._phase}: {self._missed()} "
            f"({_first_line(error)}); the last checkpoint is intact"
        )

    def _missed(self) -> str:
        """Describe the ranks that exited, failed or are behind, as far as known."""
        time.sleep(5 * _POLL_S)  # a failing rank reports it a moment after its connections break
        try:
            others = {rank: self._state_of(rank) for rank in range(self.size) if rank != self.rank}
        except (RuntimeError, ValueError, OSError):
            return "torchrun's store is unreachable too"
        told = [f"rank {rank} {what}" for rank, (what, _) in others.items() if what]
        if told:
            return "; ".join(told)
        behind = min(number for _, (_, number) in others.items())
        late = [str(rank) for rank, (_, number) in others.items() if number == behind]
        phase = self._told("phase", int(late[0])).partition(" ")[2] or "joining the run"
        return f"rank {', '.join(late)} did not respond, last seen in {phase}"

    def _state_of(self, rank: int) -> tuple[str, int]:
        """Return a rank's problem (empty if none is known), and the number of phases it has entered."""
        number, _, phase = self._told("phase", rank).partition(" ")
        if failure := self._told("failed", rank):
            return f"failed in {phase}: {failure}", int(number or 0)
        host, _, pid = self._told("process", rank).partition(" ")
        if host == socket.gethostname() and not is_alive(int(pid)):
            return f"exited (killed, or out of memory) in {phase}", int(number or 0)
        return "", int(number or 0)

    def _note(self, kind: str, content: str) -> None:
        try:
            self._store.set(f"{kind}/{self.rank}", content)
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"rank {self.rank} lost the connection to torchrun's store in {self._phase} "
                f"({_first_line(error)}); check the logs of the other ranks"
            ) from error

    def _told(self, kind: str, rank: int) -> str:
        key = f"{kind}/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _bounded(self, exchange: Callable[[], _T]) -> _T:
        """Return the result of `exchange`, and add its duration to `waited_s`.

        Raises `RankError` if the connection to another rank is lost.
        """
        started = time.monotonic()
        try:
            return exchange()
        except RuntimeError as error:
            raise self.explained(error) from error
        finally:
            self.waited_s += time.monotonic() - started

    def _check_devices(self, device: str) -> None:
        kinds = self.gather(torch.cuda.get_device_name() if device == "cuda" else device)
        if len(set(kinds)) > 1:
            raise ConfigError(
                "all ranks must use the same kind of device, since work is divided evenly, got "
                f"{', '.join(sorted(set(kinds)))}; choose machines with one kind of GPU"
            )


def _numbers(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return rank, number of ranks, local rank and number of local ranks, from torchrun's variables."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE={environment.get('WORLD_SIZE')} requires {', '.join(missing)} in the "
            "environment; start the ranks with torchrun or `atrium train compute=node`"
        )
    rank, size, local_rank = (int(environment[name]) for name in names)
    return rank, size, local_rank, int(environment.get("LOCAL_WORLD_SIZE", size))


def _take_gpu(local_rank: int) -> None:
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise ConfigError(
            f"local rank {local_rank} has no GPU of its own, since the number of GPUs is "
            f"{num_gpus}; start at most one rank per GPU"
        )
    torch.cuda.set_device(local_rank)


def _is_of_connection(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "nccl", "connection closed", "connection reset", "broken pipe")
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
