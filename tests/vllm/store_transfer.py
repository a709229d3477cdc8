"""What stands for NCCL where there is no GPU: a plugin of a trainer and of its engines (see `sending`).

Tensors go through a file. All that vLLM has above its communicator is vLLM's.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from tests.vllm.settings import vllm_settings
from torch.distributed import FileStore

vllm_settings().prepare_environment("cpu", Path(tempfile.gettempdir()))  # before vLLM is imported

from vllm.distributed.device_communicators import pynccl, pynccl_wrapper  # noqa: E402
from vllm.distributed.utils import StatelessProcessGroup  # noqa: E402


class StoreLibrary:
    """Names a file in place of NCCL's id of a group."""

    def ncclGetUniqueId(self):
        number, path = tempfile.mkstemp()
        os.close(number)
        return path.encode().ljust(pynccl_wrapper.NCCL_UNIQUE_ID_BYTES, b"\0")


class StoreCommunicator:
    """Broadcasts through a file."""

    device = torch.device("cpu")

    @classmethod
    def from_unique_id_bytes(cls, unique_id_bytes, rank, world_size, device):
        assert device == 0
        self = cls()
        self.path = unique_id_bytes.rstrip(b"\0").decode()
        store = FileStore(self.path, world_size)
        self.group = StatelessProcessGroup(rank=rank, world_size=world_size, store=store)
        assert self.group.all_gather_obj(rank) == [*range(world_size)]  # who misses one waits, as with NCCL
        return self

    def broadcast(self, tensor, src, stream=None):
        sent = self.group.broadcast(tensor, src)
        if self.group.rank != src:
            tensor.copy_(sent)

    def destroy(self):
        if self.group.rank == 0:
            Path(self.path).unlink()


pynccl.PyNcclCommunicator = StoreCommunicator
pynccl_wrapper.NCCLLibrary = StoreLibrary
torch.accelerator.current_device_index = lambda: 0
torch.cuda.current_stream = lambda: None
