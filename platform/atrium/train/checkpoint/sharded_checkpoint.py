"""Checkpoints of a run on several ranks, each of which writes its shards in the background.

`torch.distributed.checkpoint` writes safetensors per rank and merges them into the same files that a run on
one process writes, so a checkpoint can be resumed on any number of ranks and contains a plain transformers
folder. The only additional file, `optimizer-alike.safetensors`, contains the optimizer's unsharded tensors,
such as step counts. Rank 0 renames the checkpoint once all files are on disk. There is no random state to
save: every random choice is keyed by the seed and the step.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import PreTrainedModel

from atrium.base.errors import CheckpointError
from atrium.models.lora import ADAPTER_FOLDER, adapter_weights, plain_parameters, write_adapter
from atrium.models.shards import is_sharded
from atrium.train.background import in_background
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState
from atrium.train.checkpoint.lagged import write_lagged
from atrium.train.collect import Collected
from atrium.train.ranks.connected_ranks import ConnectedRanks

_WRITTEN = "model-00001-of-00001.safetensors"


@dataclass(frozen=True, kw_only=True)
class ShardedCheckpointStore(CheckpointStore):
    """The checkpoints of a run on several ranks. All ranks must call each method together.

    `model` is the sharded policy. `save_policy` writes all files of the policy's folder except the weights.
    All ranks need access to the checkpoint folder.
    """

    model: PreTrainedModel
    ranks: ConnectedRanks
    _writing: list[Future[None]] = field(default_factory=list, init=False)

    def save(
        self,
        state: TrainingState,
        optimizer: Mapping[str, Tensor],
        reference: Mapping[str, Tensor] | None = None,
        lagged: Sequence[Collected] = (),
    ) -> Path:
        """Wait for the previous checkpoint, copy the state to the host, and start writing the new checkpoint.

        Returns the folder that the checkpoint will have. If writing the previous checkpoint failed, its error
        is raised, such as a `CheckpointError`.
        """
        self.finish()
        path, temporary = self._paths(state)
        parts = {"policy/model": _on_host(plain_parameters(self.model))}
        adapters = adapter_weights(self.model)
        parts["optimizer"] = _on_host({name: x for name, x in optimizer.items() if is_sharded(x)})
        if reference is not None:
            parts["reference"] = _on_host(reference)
        if self.ranks.is_first:
            self._prepare(temporary)
            # Step counts are not consolidated: torch 2.13 turns zero-dimensional tensors into zeros.
            alike = _on_host({name: x for name, x in optimizer.items() if not is_sharded(x)})
            save_file(alike, temporary / "optimizer-alike.safetensors")
            write_lagged(lagged, temporary)
        self.ranks.gather(None)  # no rank writes before the folder exists
        self._writing.append(in_background(partial(self._write, state, parts, adapters), "checkpoint"))
        return path

    def finish(self) -> None:
        """Wait until the last checkpoint exists for all ranks; raise an error if writing it failed."""
        while self._writing:
            if (failure := self._writing.pop().exception()) is not None:
                raise self.ranks.explained(failure)
        self.ranks.gather(None)  # afterwards the checkpoint exists for all ranks

    def _write(
        self,
        state: TrainingState,
        parts: Mapping[str, Mapping[str, Tensor]],
        adapters: Mapping[str, Tensor],
    ) -> None:
        """Write this rank's shards of every part; rank 0 then completes the checkpoint."""
        _, temporary = self._paths(state)
        for name, tensors in parts.items():
            writer = HuggingFaceStorageWriter(
                path=str(_shards(temporary, name)), save_distributed=True, enable_consolidation=True
            )
            save(dict(tensors), storage_writer=writer, process_group=self.ranks.checkpoint_group)
        if self.ranks.is_first:
            self._write_whole(
                state, lambda folder: self._put_together(folder, [*parts], adapters), prepared=True
            )

    def _put_together(self, folder: Path, names: list[str], adapters: Mapping[str, Tensor]) -> None:
        """Name each merged file as in an unsharded checkpoint, and write the policy's other files.

        `names` lists the parts whose files were merged. `adapters` contains the weights of the adapter, and
        is empty if there is no adapter.
        """
        self.save_policy(folder / "policy")
        if adapters:
            write_adapter(self.model, folder / "policy" / ADAPTER_FOLDER, adapters)
        for name in names:
            shards = _shards(folder, name)
            (shards / _WRITTEN).rename(folder / f"{name}.safetensors")
            shutil.rmtree(shards)


def read_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: ConnectedRanks) -> None:
    """Fill the named tensors from the safetensors files of a folder. Each rank reads its own shards.

    Raises `CheckpointError` if a tensor is missing or has another shape.
    """
    saved = saved_tensors(folder)
    for name, tensor in tensors.items():
        if name not in saved or saved[name][0] != tensor.shape:
            has = f"has shape {tuple(saved[name][0])}" if name in saved else "is missing"
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another model, since {name} {has}, expected "
                f"{tuple(tensor.shape)}; resume with the settings of the checkpoint"
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
    """Return the tensors of a checkpoint's optimizer state, by name.

    A tensor with the shape of its parameter is sharded like the parameter. Other tensors, such as step
    counts, are not sharded.
    """
    state: dict[str, Tensor] = {}
    for name, (shape, dtype) in saved_tensors(checkpoint).items():
        owner, _, quantity = name.rpartition("/")
        if not quantity or not owner:
            continue  # a tensor of the reference or of a lagged batch
        parameter = parameters.get(owner)
        if parameter is not None and parameter.shape == shape:
            state[name] = torch.zeros_like(parameter.detach(), dtype=dtype)
        else:  # a count, values per block, or a state that `PolicyOptimizer.load_state` refuses
            state[name] = torch.zeros(shape, dtype=dtype)
    read_shards(checkpoint, state, ranks)
    return state


def _shards(folder: Path, name: str) -> Path:
    return folder / f".{name.replace('/', '-')}"


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the host's memory, so that training cannot change the values during writing."""
    with torch.no_grad():
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
