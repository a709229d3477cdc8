"""Checkpoints: complete, atomic, free of pickle, and usable as plain transformers folders.

`checkpoints/step-000040/` contains `policy/` (a transformers folder), `optimizer.safetensors`, `state.json`
(which lists the other files with their sizes, except `SHA256SUMS`) and `SHA256SUMS` (the digests of all other
files). It also contains `reference.safetensors` if the reference moves, `optimizer-alike.safetensors` in a
run on several ranks, and `lagged-N.json` and `lagged-N.safetensors` if the batch of the N-th step after the
checkpoint is already sampled. A checkpoint is written under a temporary name, flushed to disk and renamed, so
a folder with the final name is complete. Digests detect damage, such as that caused by a bad disk or a manual
change. A damaged checkpoint is not loaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from atrium.base.atomic import sync_folder
from atrium.base.errors import CheckpointError, reason_of, remedy_of
from atrium.method.objective import ObjectiveState
from atrium.train.checkpoint.checkpoint_files import (
    DIGESTS,
    FORMAT_VERSION,
    STATE,
    check_files,
    checkpoint_paths,
    read_state,
    way_back,
    write_digests,
)
from atrium.train.checkpoint.lagged import read_lagged, write_lagged
from atrium.train.collect import Collected
from atrium.train.guard.faults import UpdateState


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The state of a run besides weights and optimizer state.

    `cursor` is the position in the stream of problems, and `weight_version` the number of optimizer updates.
    `best_step` is the evaluated step with the highest score, `best_value`, on the validation problems.
    `update` contains the number of skipped updates and any reduced micro-batch size.
    """

    step: int = 0
    cursor: int = 0
    weight_version: int = 0
    num_tokens: int = 0
    wall_s: float = 0.0
    objective: ObjectiveState
    best_step: int | None = None
    best_value: float | None = None
    update: UpdateState = UpdateState()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint as read from disk."""

    path: Path
    state: TrainingState
    optimizer: dict[str, Tensor]
    reference: dict[str, Tensor] | None
    lagged: tuple[Collected, ...] = ()

    @property
    def policy(self) -> Path:
        """The folder with weights, configuration and tokenizer, in the format of transformers."""
        return self.path / "policy"


@dataclass(frozen=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run.

    `save_policy` writes a transformers folder. The newest `keep_last` checkpoints are kept, and, if
    `keep_best` is set, the best one.
    """

    folder: Path
    save_policy: Callable[[Path], None]
    keep_last: int
    keep_best: bool

    def save(
        self,
        state: TrainingState,
        optimizer: Mapping[str, Tensor],
        reference: Mapping[str, Tensor] | None = None,
        lagged: Sequence[Collected] = (),
    ) -> Path:
        """Write the checkpoint of `state.step`, and delete checkpoints that are no longer kept.

        Replaces an older checkpoint of the same step. Checkpoints of later steps are deleted too, except the
        best one if it is kept. Returns the folder of the new checkpoint. Raises `CheckpointError` if the
        checkpoint cannot be written, such as to a full disk; older checkpoints are then unchanged.
        """

        def write(folder: Path) -> None:
            self.save_policy(folder / "policy")
            save_file(_contiguous(optimizer), folder / "optimizer.safetensors")
            if reference is not None:
                save_file(_contiguous(reference), folder / "reference.safetensors")
            write_lagged(lagged, folder)

        return self._write_whole(state, write)

    def finish(self) -> None:
        """Wait until all saved data is on disk. Does nothing, since this class writes synchronously."""

    def _write_whole(
        self, state: TrainingState, write: Callable[[Path], None], *, prepared: bool = False
    ) -> Path:
        """Write a checkpoint to a temporary folder, and rename the folder; return the final path.

        `write` writes the files into the temporary folder, except state and digests, which are added
        afterwards. `prepared` means that the temporary folder already exists. Raises `CheckpointError` if the
        checkpoint cannot be written, such as to a full disk.
        """
        path, partial = self._paths(state)
        try:
            if not prepared:
                self._prepare(partial)
            write(partial)
            _write_state(partial, state)
            write_digests(partial)
            _flush(partial)
            self._set_in_place(partial, path)
            sync_folder(self.folder)
            self._name_best(state.best_step)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            # The tokenizer's library raises a plain Exception for a full disk.
            if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
                raise
            raise CheckpointError(
                f"checkpoint {path} cannot be written: {reason_of(error)}; {remedy_of(error)}, or choose "
                "another runs_dir, then resume from the last checkpoint"
            ) from error
        self._prune(path, state.best_step)
        return path

    def _paths(self, state: TrainingState) -> tuple[Path, Path]:
        """Return the final and the temporary folder of a checkpoint."""
        path = self.folder / _name(state.step)
        return path, self.folder / f".{path.name}.partial"

    @staticmethod
    def _prepare(partial: Path) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(exist_ok=True)  # without parents: a deleted run directory is not recreated
        partial.mkdir()

    @staticmethod
    def _set_in_place(partial: Path, path: Path) -> None:
        """Rename a complete checkpoint to its final name, after moving away an older one of the same step."""
        if path.exists():
            replaced = partial.with_suffix(".replaced.partial")
            shutil.rmtree(replaced, ignore_errors=True)
            path.rename(replaced)
        partial.rename(path)

    def _name_best(self, step: int | None) -> None:
        """Write the step of the best checkpoint to `best.json`, or delete this file if none is kept."""
        if self.keep_best and step is not None and (self.folder / _name(step)).is_dir():
            _write_best(self.folder, step)
        else:
            (self.folder / "best.json").unlink(missing_ok=True)

    def _prune(self, newest: Path, best_step: int | None) -> None:
        paths = checkpoint_paths(self.folder)
        # Checkpoints of later steps are damaged; otherwise training would have resumed from them.
        kept = set(paths[: paths.index(newest) + 1][-self.keep_last :])
        if self.keep_best and best_step is not None:
            kept.add(self.folder / _name(best_step))
        for path in paths:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
        for leftover in self.folder.glob(".*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)


def latest_checkpoint(folder: Path, *, with_tensors: bool = True) -> Checkpoint | None:
    """Return the newest checkpoint of a folder of checkpoints, or None if there is none.

    `with_tensors` is passed to `load_checkpoint`. Raises `CheckpointError` if the newest checkpoint is
    unusable: only the user may decide to resume from an earlier one.
    """
    paths = checkpoint_paths(folder)
    if not paths:
        return None
    try:
        return load_checkpoint(paths[-1], with_tensors=with_tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; nothing was changed; {way_back(folder)}") from error


def load_checkpoint(path: Path, *, with_tensors: bool = True, digests: bool = True) -> Checkpoint:
    """Read a checkpoint; raise `CheckpointError` if it is missing, incomplete or damaged.

    Without `with_tensors`, the tensors of the optimizer and the reference policy are not read, since each
    rank reads its shards later. Without `digests`, only sizes are compared, which suffices if another rank
    verifies the digests.
    """
    check_files(path, digests=digests)
    try:
        state = dict(read_state(path)["state"])
        objective = ObjectiveState.from_record(state.pop("objective"))
        update = UpdateState(**state.pop("update", {}))
        training_state = TrainingState(objective=objective, update=update, **state)
        optimizer = _read_optimizer(path) if with_tensors else {}
        reference_file = path / "reference.safetensors"
        reference = load_file(reference_file) if with_tensors and reference_file.exists() else None
        lagged = read_lagged(path)
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else reason_of(error)
        raise CheckpointError(
            f"checkpoint {path} is damaged ({what}); resume from an earlier step with --from-step"
        ) from error
    return Checkpoint(
        path=path,
        state=training_state,
        optimizer=optimizer,
        reference=reference,
        lagged=lagged,
    )


def _read_optimizer(path: Path) -> dict[str, Tensor]:
    """Read the optimizer's state, including the separate file with unsharded tensors of a sharded run."""
    state = load_file(path / "optimizer.safetensors")
    alike = path / "optimizer-alike.safetensors"
    return {**state, **load_file(alike)} if alike.exists() else state


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _write_state(folder: Path, state: TrainingState) -> None:
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = {
        "format_version": FORMAT_VERSION,
        "state": asdict(state),
        "files": files,
        "digests": DIGESTS,
    }
    (folder / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _write_best(folder: Path, step: int) -> None:
    partial = folder / ".best.json.partial"
    partial.write_text(json.dumps({"step": step}), encoding="utf-8")
    partial.replace(folder / "best.json")


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync_folder(path)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
