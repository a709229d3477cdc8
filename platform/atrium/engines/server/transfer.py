"""Transfer of weights over NCCL from the trainer's GPU to the servers' GPUs, with vLLM's own code.

The trainer and all processes of its servers form one NCCL group, in which the trainer is rank 0 and
broadcasts. Weights are rounded on the trainer's GPU one by one and sent in packed buffers, so the trainer
needs no second copy of the model. NCCL waits forever for a dead process, so a watchdog bounds each transfer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import httpx
import torch
from torch import Tensor

from atrium.base.errors import EngineError, reason_of
from atrium.base.watchdog import Watchdog
from atrium.engines.server.client import ServerError
from atrium.engines.server.pool import RESUME, Server, ServerPool
from atrium.models.shards import full_tensor, is_sharded

# Buffers of the trainer and of each server process, which take their memory during a transfer.
_PACKED = {"packed": True, "packed_buffer_size_bytes": 256 << 20, "packed_num_buffers": 2}

Submit = Callable[[Coroutine[Any, Any, Any]], Future[Any]]
"""A function that starts a coroutine in the pool's event loop."""


class NcclSender:
    """A sender of a policy's weights to a pool of servers over NCCL.

    `weights` provides names, dtypes and shapes. Floating-point weights are rounded to the dtype `rounded`;
    None means no rounding. `timeout_s` limits one transfer, and the time until all servers have joined the
    NCCL group.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        rounded: torch.dtype | None,
        *,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self._dtypes = {
            name: rounded if rounded and one.is_floating_point() else one.dtype
            for name, one in weights.items()
        }
        self._described = {
            "names": list(weights),
            "dtype_names": [str(dtype).removeprefix("torch.") for dtype in self._dtypes.values()],
            "shapes": [list(one.shape) for one in weights.values()],
        }
        self._device = device
        self._timeout_s = timeout_s
        self._watchdog = Watchdog()
        self._members: tuple[object, ...] = ()
        self._group: Any = None

    def send(self, weights: Mapping[str, Tensor], version: int, pool: ServerPool, submit: Submit) -> None:
        """Send a full `state_dict` as `version` to the servers that are ready.

        A restarting server receives the weights of a later call. If a server is lost during the transfer, the
        others cannot finish it. All servers are then restarted, and the weights are sent again. Raises
        `EngineError` if this fails too.

        With sharded weights, all ranks must call this at the same time, each for its own servers. Sharded
        weights are not sent again: the loss of a server raises `EngineError` at once.
        """
        try:
            self._send(weights, version, pool, submit)
        except (httpx.HTTPError, ServerError, RuntimeError) as error:
            self._leave()
            why = f"weights could not be sent over NCCL: {reason_of(error)}"
            if any(map(is_sharded, weights.values())):
                raise EngineError(f"{why}; {RESUME}") from error
            submit(pool.restart(why)).result()
            try:
                self._send(weights, version, pool, submit)
            except (httpx.HTTPError, ServerError, RuntimeError) as again:
                self._leave()
                raise EngineError(
                    f"{why}, and again after a restart: {reason_of(again)}; {RESUME}"
                ) from again

    def close(self) -> None:
        """Leave the NCCL group. Harmless when called twice."""
        self._leave()
        self._watchdog.close()

    def _send(self, weights: Mapping[str, Tensor], version: int, pool: ServerPool, submit: Submit) -> None:
        servers: list[Server] = submit(pool.reachable()).result()
        with torch.no_grad():
            with self._watchdog.bounded("servers to join the trainer's NCCL group", self._timeout_s):
                self._connect(servers, submit)
            with self._watchdog.bounded("new weights to reach the servers over NCCL", self._timeout_s):
                received = submit(pool.receive(servers, self._described, version))
                received.add_done_callback(self._leave_where_failed)
                self._broadcast(weights)
                received.result()

    def _connect(self, servers: Sequence[Server], submit: Submit) -> None:
        """Form an NCCL group with `servers`, unless there already is one with the same servers.

        A server that has been restarted needs a new group.
        """
        members = tuple(server.lost for server in servers)
        if self._group is not None and members == self._members:
            return
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        self._leave()
        sizes = [submit(server.client.num_processes()).result() for server in servers]
        unique_id, world_size = bytes(NCCLLibrary().ncclGetUniqueId()), 1 + sum(sizes)
        shared = {
            "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
            "world_size": world_size,
            **_PACKED,
        }
        joined = [
            submit(server.client.join_group({**shared, "rank_offset": 1 + sum(sizes[:number])}))
            for number, server in enumerate(servers)
        ]
        self._group = uid_init_process_group(unique_id, 0, world_size, self._device.index or 0)
        for one in joined:
            one.result()
        self._members = members

    def _broadcast(self, weights: Mapping[str, Tensor]) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the buffers' streams do not wait for the update's
        packed_nccl_broadcast_producer(
            iterator=self._rounded(weights),
            group=self._group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=_PACKED["packed_buffer_size_bytes"],
            num_buffers=_PACKED["packed_num_buffers"],
        )

    def _rounded(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, dtype in self._dtypes.items():
            yield name, full_tensor(weights[name]).to(self._device, dtype)

    def _leave_where_failed(self, received: Future[Any]) -> None:
        """Leave the NCCL group if a server has failed, to end a broadcast that would never be received."""
        if not received.cancelled() and received.exception() is not None:
            self._leave()

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.destroy()
