"""A stand-in for NCCL where there is no GPU: a vLLM plugin of servers, and patches of a trainer.

Tensors pass through a file. All that vLLM has above its communicator is vLLM's.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed import FileStore


class StoreLibrary:
    """Names a file in place of NCCL's id of a group."""

    def ncclGetUniqueId(self):
        number, path = tempfile.mkstemp(dir=os.environ["STORE_TRANSFER_FOLDER"])
        os.close(number)
        return path.encode().ljust(128, b"\0")


class StoreCommunicator:
    """Broadcasts through a file."""

    device = torch.device("cpu")

    @classmethod
    def from_unique_id_bytes(cls, unique_id_bytes, rank, world_size, device):
        from vllm.distributed.utils import StatelessProcessGroup

        assert device == 0
        self = cls()
        store = FileStore(unique_id_bytes.rstrip(b"\0").decode(), world_size)
        self.group = StatelessProcessGroup(rank=rank, world_size=world_size, store=store)
        assert self.group.all_gather_obj(rank) == [*range(world_size)]  # like NCCL, waits for all
        return self

    def broadcast(self, tensor, src, stream=None):
        sent = self.group.broadcast(tensor, src)
        if self.group.rank != src:
            tensor.copy_(sent)

    def destroy(self):
        """Nothing is left to free."""


def install(set_attribute=setattr):
    """Put a file in the place of NCCL and of CUDA's streams."""
    from vllm.distributed.device_communicators import pynccl, pynccl_wrapper
    from vllm.distributed.weight_transfer import packed_tensor

    stream = SimpleNamespace(synchronize=lambda: None)
    set_attribute(pynccl, "PyNcclCommunicator", StoreCommunicator)
    set_attribute(pynccl_wrapper, "NCCLLibrary", StoreLibrary)
    set_attribute(packed_tensor, "_get_streams", lambda device, number: (stream,) * number)
    set_attribute(torch.cuda, "stream", lambda stream: nullcontext())
    set_attribute(torch.accelerator, "current_device_index", lambda: 0)


def plugin_folder(parent: Path) -> Path:
    """A folder that, on the path of a server, makes vLLM call `install`."""
    folder = parent / "store_transfer-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: store-transfer\nVersion: 0\n")
    entry = "[vllm.general_plugins]\nstore_transfer = tests.vllm.store_transfer:install\n"
    (folder / "entry_points.txt").write_text(entry)
    return parent
