"""The processes that share a run: which one this is, and what they tell each other.

One process is `Ranks()`, which answers by itself. Several are `ConnectedRanks` (see `connected_ranks`);
the loop is the same code on both. What every rank needs to agree about (rewards, sums, whether to stop)
passes through here on the host; the policy's tensors pass through FSDP2 (see `sharding`).
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
    """The only process of a run. A rank is a process's number, counted from 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among those on its machine, which are numbered one after the other."""
    local_size: int = 1
    """Processes of the run on this machine."""
    ranks_per_engine: int = 1
    """Consecutive ranks that share one engine: they ask it for the same things, and all get its answers."""
    waited_s: float = 0.0
    """Seconds that this rank has waited for others here, since the run began."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes the run folder."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether no other process shares the run."""
        return self.size == 1

    @property
    def num_engines(self) -> int:
        """Engines of the run, each of one rank or shared by several."""
        return self.size // self.ranks_per_engine

    @property
    def engine(self) -> int:
        """The number of this rank's engine, counted from 0."""
        return self.rank // self.ranks_per_engine

    @property
    def leads_engine(self) -> bool:
        """Whether this rank passes on what its engine answers; the others that share the engine drop it."""
        return self.rank % self.ranks_per_engine == 0

    def shares(self, things: Sequence[_T]) -> list[list[_T]]:
        """The part of each engine of things that are dealt one by one, in their order; may be empty."""
        return [list(things[engine :: self.num_engines]) for engine in range(self.num_engines)]

    def share(self, things: Sequence[_T]) -> list[_T]:
        """The part of this rank's engine."""
        return self.shares(things)[self.engine]

    def gather(self, record: Any) -> list[Any]:  # noqa: ANN401 - whatever JSON can hold
        """Every rank's record, in the order of the ranks; it consists of what JSON can hold."""
        return [record]

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Every rank's bytes, in the order of the ranks."""
        return [content]

    def from_first(self, record: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """The record of rank 0."""
        return record

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank."""
        return flag

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place, on the tensor's device; floats are added in an order of torch's."""
        return tensor

    @contextmanager
    def first_alone(self, what: str) -> Iterator[None]:
        """Run the block on rank 0, and on the others once rank 0 has left it: they find what it made."""
        del what
        yield

    def on_own_connections(self) -> Ranks:
        """The same processes over other connections, for a thread beside the one that has these.

        All ranks call it in the same order.
        """
        return self

    def explained(self, error: BaseException) -> BaseException:
        """The error itself, or a `RankError` that names who was missed where it says that a rank was."""
        return error

    def enter(self, phase: str) -> None:
        """Say what this rank does now; others name it where it is missed."""

    def close(self, failure: str | None = None) -> None:
        """Leave the other ranks, and tell them why if this one failed. Harmless when called twice."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """How the models of a run are spread over its ranks; None where a model is whole or absent."""

    policy: ShardedModel | None = None
    reference: ShardedModel | None = None


SINGLE = Ranks()
"""The one process of a run that has no other."""
UNSHARDED = Shards()
"""Models that are spread over nothing."""
