"""Checkpoints of a run on several ranks: each writes its shards in the background; the result is ordinary.

`torch.distributed.checkpoint` writes safetensors per rank and merges them into the same files that a run on
one process writes, so a checkpoint can be resumed on any number of ranks and is a plain transformers folder.
Rank 0 renames it once all of it is on disk. There is no random state to save: every random choice is keyed by
the seed and the step.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from atrium.base.errors import CheckpointError
from atrium.models.shards import is_sharded
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState
from atrium.train.checkpoint.lagged import write_lagged
from atrium.train.collect import Collected
from atrium.train.ranks.connected_ranks import ConnectedRanks

_WRITTEN = "model-00001-of-00001.safetensors"


@dataclass
class _Writing:
    """A checkpoint that a thread is writing, and its errors."""

    thread: threading.Thread
    failures: list[BaseException]


@dataclass(frozen=True, kw_only=True)
class ShardedCheckpointStore(CheckpointStore):
    """The checkpoints of a run on several ranks; every rank calls all methods.

    `model` is the sharded policy. `save_policy` writes the files of its folder other than weights. The folder
    is shared by all ranks.
    """

    model: nn.Module
    ranks: ConnectedRanks
    _writing: list[_Writing] = field(default_factory=list, init=False)

    def save(
        self,
        state: TrainingState,
        optimizer: Mapping[str, Tensor],
        reference: Mapping[str, Tensor] | None = None,
        lagged: Sequence[Collected] = (),
    ) -> Path:
        """Copy the checkpoint of `state.step` to the host and start writing it; the previous one is finished.

        Raises `CheckpointError` if the disk is full for the previous one.
        """
        self.finish()
        path, partial = self._paths(state)
        parts = {"policy/model": _on_host(dict(self.model.named_parameters()))}
        parts["optimizer"] = _on_host({name: x for name, x in optimizer.items() if is_sharded(x)})
        if reference is not None:
            parts["reference"] = _on_host(reference)
        if self.ranks.is_first:
            self._prepare(partial)
            # Step counts: consolidation in torch 2.13 turns zero-dimensional tensors into zeros.
            alike = _on_host({name: x for name, x in optimizer.items() if not is_sharded(x)})
            save_file(alike, partial / "optimizer-alike.safetensors")
            write_lagged(lagged, partial)
        self.ranks.gather(None)  # no rank writes before the folder exists
        failures: list[BaseException] = []
        thread = threading.Thread(
            target=self._write, args=(state, parts, failures), name="checkpoint", daemon=True
        )
        self._writing.append(_Writing(thread, failures))
        thread.start()
        return path

    def finish(self) -> None:
        """Wait until the last save is on disk."""
        while self._writing:
            writing = self._writing.pop()
            writing.thread.join()
            for failure in writing.failures:
                raise self.ranks.explained(failure)
        self.ranks.gather(None)  # then it exists for all

    def _write(
        self, state: TrainingState, parts: Mapping[str, Mapping[str, Tensor]], failures: list[BaseException]
    ) -> None:
        """Write every part on all ranks; rank 0 then makes a checkpoint of them."""
        _, partial = self._paths(state)
        try:
            for name, tensors in parts.items():
                writer = HuggingFaceStorageWriter(
                    path=str(_shards(partial, name)), save_distributed=True, enable_consolidation=True
                )
                save(dict(tensors), storage_writer=writer, process_group=self.ranks.checkpoint_group)
            if self.ranks.is_first:
                self._write_whole(state, lambda folder: self._put_together(folder, [*parts]), prepared=True)
        except BaseException as failure:
            failures.append(failure)

    def _put_together(self, folder: Path, names: list[str]) -> None:
        """Rename the consolidated files to their names in any checkpoint."""
        self.save_policy(folder / "policy")
        for name in names:
            shards = _shards(folder, name)
            (shards / _WRITTEN).rename(folder / f"{name}.safetensors")
            shutil.rmtree(shards)


def read_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: ConnectedRanks) -> None:
    """Fill the tensors, by name, from a folder's safetensors files; each rank reads its own shards.

    Raises `CheckpointError` if one is missing or has another shape.
    """
    saved = saved_tensors(folder)
    for name, tensor in tensors.items():
        if name not in saved or saved[name][0] != tensor.shape:
            has = f"has shape {tuple(saved[name][0])}" if name in saved else "is missing"
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another model: {name} {has}, expected "
                f"{tuple(tensor.shape)}; resume with the settings that it was trained with"
            )
    load(
        dict(tensors),
        storage_reader=HuggingFaceStorageReader(str(folder)),
        process_group=ranks.checkpoint_group,
    )


def saved_tensors(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shapes and dtypes of all tensors in a folder's safetensors files, by name."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_optimizer(
    checkpoint: Path, parameters: Mapping[str, Tensor], ranks: ConnectedRanks
) -> dict[str, Tensor]:
    """Return the optimizer's state of a checkpoint, sharded like the parameters that it belongs to."""
    state: dict[str, Tensor] = {}
    for name, (shape, dtype) in saved_tensors(checkpoint).items():
        owner, _, quantity = name.rpartition("/")
        if not quantity or not owner:
            continue  # of the reference, or of a lagged batch
        parameter = parameters.get(owner)
        if parameter is None:
            raise CheckpointError(f"the optimizer state contains {owner}, which the model does not have")
        if parameter.shape == shape:
            state[name] = torch.zeros_like(parameter.detach(), dtype=dtype)
        else:
            state[name] = torch.zeros(shape, dtype=dtype)
    read_shards(checkpoint, state, ranks)
    return state


def _shards(folder: Path, name: str) -> Path:
    return folder / f".{name.replace('/', '-')}"


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the host's memory, which training does not change during writing."""
    with torch.no_grad():
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
