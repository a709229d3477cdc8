"""The processes that together are one engine: how they find each other, on one machine.

vLLM splits a model over the processes of torch's default group (see `vllm_start`). Each schedules and samples
by itself, so all are asked the same and would answer the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from atrium.errors import EngineError

_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)


def meeting_memory() -> int:
    """The descriptor of memory without a name, in which the processes of an engine find each other."""
    return os.memfd_create("meeting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process's part in an engine, by default all of it.

    Attributes
    ----------
    rank, size
        Its number among those of the engine, and how many these are. The first answers for all.
    meeting
        The path by which this process opens their `meeting_memory`.
    timeout_s
        How long it waits for the others.
    """

    rank: int = 0
    size: int = 1
    meeting: str = ""
    timeout_s: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether it hands over what is sampled."""
        return self.rank == 0

    def join(self, device: Literal["cpu", "cuda"], *, is_afar: bool = False) -> None:
        """Connect this process with the others of its engine, over the loopback alone.

        Where NCCL has to reach a trainer on another machine (`is_afar`), it listens to the network, too.
        A member starts with one visible GPU, and then sees those of all, as vLLM asks of processes that read
        each other's memory. What a rank of a run hands down to its engines of torchrun's variables is dropped
        in any case. Raises `EngineError` where the others do not come.
        """
        for name in _TORCHRUN:
            os.environ.pop(name, None)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if not is_afar:
            os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        if self.size == 1:
            return
        numbers = {"RANK": self.rank, "LOCAL_RANK": self.rank}
        sizes = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
        os.environ.update({name: str(number) for name, number in (numbers | sizes).items()})
        timeout = timedelta(seconds=self.timeout_s)
        try:
            store = FileStore(self.meeting, self.size)
            store.set_timeout(timeout)
            if device == "cuda":
                self._see_all_gpus(store)
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
                device_id=torch.device("cuda", self.rank) if device == "cuda" else None,
            )
        except RuntimeError as error:
            raise EngineError(
                f"process {self.rank} of an engine did not reach the other {self.size - 1} "
                f"(rollout.tensor_parallel={self.size}): {' '.join(str(error).split())[:200]}"
            ) from error

    def _see_all_gpus(self, store: Store) -> None:
        """Tell the others of this process's GPU and take theirs too, before any is used."""
        store.set(f"gpu/{self.rank}", os.environ["CUDA_VISIBLE_DEVICES"])
        names = [store.get(f"gpu/{rank}").decode() for rank in range(self.size)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        torch.cuda.set_device(self.rank)
