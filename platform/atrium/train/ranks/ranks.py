"""The processes that share a run, and their communication.

A run with a single process uses `Ranks`, which needs no communication. A run with several processes uses
`ConnectedRanks` (see `connected_ranks`). The code of the loop is the same for both. Values that every rank
must agree on (rewards, sums, stop requests) are exchanged here on the host; the policy's tensors are
exchanged by FSDP2 (see `sharding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from atrium.train.ranks.sharding import ShardedModel

_T = TypeVar("_T")


class Ranks:
    """The ranks (numbered processes) of a run with a single process. Subclasses support several."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """This process's number among the run's processes on its machine, counted from 0."""
    local_size: int = 1
    """The number of processes of the run on this machine."""
    ranks_per_engine: int = 1
    """Number of consecutive ranks that share one engine: they send the same requests, and all receive the
    answers."""
    waited_s: float = 0.0
    """Seconds that this rank has waited for others since the run began."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run directory.

        The other ranks add only their shards of checkpoints and their own logs and reports.
        """
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether no other process shares the run."""
        return self.size == 1

    @property
    def num_engines(self) -> int:
        """The number of engines in the run: one per rank, or one per `ranks_per_engine` ranks."""
        return self.size // self.ranks_per_engine

    @property
    def engine(self) -> int:
        """The number of this rank's engine, counted from 0."""
        return self.rank // self.ranks_per_engine

    @property
    def leads_engine(self) -> bool:
        """Whether this rank uses its engine's completions. Other ranks that share the engine drop them."""
        return self.rank % self.ranks_per_engine == 0

    def shares(self, things: Sequence[_T]) -> list[list[_T]]:
        """Distribute items round-robin over the engines. Returns each engine's list, which may be empty."""
        return [list(things[engine :: self.num_engines]) for engine in range(self.num_engines)]

    def share(self, things: Sequence[_T]) -> list[_T]:
        """Return the items that `shares` assigns to this rank's engine."""
        return self.shares(things)[self.engine]

    def gather(self, record: Any) -> list[Any]:  # noqa: ANN401 - whatever JSON can hold
        """Return every rank's record, in the order of the ranks. Records must be JSON-serializable."""
        return [record]

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return every rank's bytes, in the order of the ranks."""
        return [content]

    def from_first(self, record: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """Return the record that rank 0 passed, on every rank."""
        return record

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on at least one rank."""
        return flag

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over ranks, in place, on its device; return the tensor.

        Torch determines the order in which the ranks' values are added.
        """
        return tensor

    @contextmanager
    def first_alone(self, what: str) -> Iterator[None]:
        """Run the block on rank 0, then on the other ranks, which can use the results of rank 0."""
        yield

    def on_own_connections(self) -> Ranks:
        """Return ranks that use separate connections, for a concurrent thread.

        All ranks must call this in the same order.
        """
        return self

    def explained(self, error: BaseException) -> BaseException:
        """Return `error`, or a `RankError` that names the missing rank if a lost connection caused it."""
        return error

    def enter(self, phase: str) -> None:
        """Announce this rank's current phase, which other ranks report if this rank is missing."""

    def close(self, failure: str | None = None) -> None:
        """Leave the run, or report a failure to the other ranks. May be called twice.

        `failure` is the reason of the failure, or None to leave.
        """


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The sharded models of a run. A model that does not exist or is not sharded is None."""

    policy: ShardedModel | None = None
    reference: ShardedModel | None = None


SINGLE = Ranks()
"""The ranks of a run with a single process."""
UNSHARDED = Shards()
"""The value for runs whose models are not sharded."""
