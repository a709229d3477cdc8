"""vLLM's transfer of weights over NCCL, from a trainer's GPU to those of its engines.

The trainer and the processes of its engines are one NCCL group, in which the trainer is the first and sends.
They find each other by an id that goes the way of all that engines are asked, and exchange tensors from GPU
to GPU, one after the other. NCCL waits for ever for a process that died: who waits ends with the watchdog.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atrium.errors import EngineError
from atrium.models.shards import full_tensor
from atrium.rollout.engine_worker import AskEach, Join, Receive
from atrium.rollout.shared_weights import TensorPlace
from atrium.rollout.vllm_start import explanation
from atrium.watchdog import Watchdog


class NcclSender:
    """Sends a policy's weights from this process's GPU to the engines that it has.

    Parameters
    ----------
    places
        Names, types and shapes of the weights.
    num_engines, num_processes
        How many engines there are, and of how many processes each consists.
    timeout_s
        How long one transfer may take, and all engines to come together.
    """

    def __init__(
        self, places: Sequence[TensorPlace], *, num_engines: int, num_processes: int, timeout_s: float
    ) -> None:
        self._places = places
        self._num_processes = num_processes
        self._world_size = 1 + num_engines * num_processes
        self._timeout_s = timeout_s
        self._watchdog = Watchdog()
        self._group: Any = None

    def connect(self, ask: AskEach) -> None:
        """Form a group with the engines of now, in place of an earlier one."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        with self._bounded("engines to join the trainer's NCCL group"):
            self._leave()
            unique_id = bytes(NCCLLibrary().ncclGetUniqueId())
            group = {
                "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
                "world_size": self._world_size,
                "packed": False,  # which would take buffers of a gigabyte beside the weights
            }
            with ThreadPoolExecutor(1) as threads:
                joined = threads.submit(
                    ask, lambda number: Join(group | {"rank_offset": 1 + number * self._num_processes})
                )
                device = torch.accelerator.current_device_index()
                self._group = uid_init_process_group(unique_id, 0, self._world_size, device)
                joined.result()

    def send(self, weights: Mapping[str, Tensor], version: int, ask: AskEach) -> None:
        """Let all engines of the group take a full `state_dict` as `version`.

        Ranks of a run, each with engines of its own, call it at the same time. Raises `EngineError` where
        an engine is lost; the group is then of no use any more.
        """
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

        client = _Client(lambda tensors: ask(lambda _: Receive(tensors, version)), self._leave)
        source = _Source(self._places, weights, self._group.device)
        with self._bounded("new weights to reach the engines over NCCL"):
            sender = NCCLTrainerWeightTransferEngine(client=client, source=source, packed=False)
            sender.model_update_group = self._group
            sender.send_weights()

    def close(self) -> None:
        """Leave the group. Harmless when called twice."""
        self._leave()
        self._watchdog.close()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.destroy()
            self._group = None

    @contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        try:
            with self._watchdog.bounded(what, self._timeout_s), torch.no_grad():
                yield
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(explanation(what, error)) from error


@dataclass(frozen=True)
class _Source:
    """A policy's weights as vLLM reads them: what they are, and one after the other."""

    places: Sequence[TensorPlace]
    weights: Mapping[str, Tensor]
    device: torch.device

    def metadata(self) -> Sequence[TensorPlace]:
        return self.places

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for place in self.places:
            yield place.name, full_tensor(self.weights[place.name]).to(self.device, place.dtype)


@dataclass(frozen=True)
class _Client:
    """What vLLM's sender asks of the engines, which do all of an update at one question."""

    receive: Callable[[Mapping[str, Any]], None]
    leave: Callable[[], None]

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Wait, in a thread of vLLM's, until all have them; where one is lost, let the sender go on."""
        try:
            self.receive(update_info)
        except BaseException:
            self.leave()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...
