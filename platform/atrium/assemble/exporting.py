"""Export of a checkpoint's policy as a plain transformers folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from atrium.assemble.model_card import example_of, usage_lines, write_card
from atrium.base.atomic import TEMPORARY_PREFIX, sync_folder
from atrium.base.errors import CheckpointError, RunFolderError
from atrium.base.recorded import read_object
from atrium.runs.policy_origin import write_origin
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint_files import DIGESTS, STATE, check_files

POLICY_FOLDER = "policy"
_ADAPTER_FOLDER = "adapter"
_WEIGHTS = ("*.safetensors", "*.bin")


def export_policy(folder: RunFolder, step: int, target: Path, *, adapter: bool, force: bool) -> list[str]:
    """Write a checkpoint's policy and a model card to `target`; `adapter` limits the policy to its adapters.

    Returns lines of Python that sample from the exported policy as in training. `force` replaces an earlier
    export in `target`. Raises `CheckpointError` for an incomplete or damaged policy or missing adapters, and
    `RunFolderError` if `target` is inside the checkpoint, or exists and cannot be replaced.
    """
    source = folder.checkpoint_path(step) / POLICY_FOLDER
    check_policy(source)
    if adapter:
        source /= _ADAPTER_FOLDER
        if not source.is_dir():
            raise CheckpointError(
                f"{folder.name} has no adapters, since it was trained with model.lora=null; remove --adapter"
            )
    checkpoint, place = folder.checkpoint_path(step).resolve(), target.resolve()
    if checkpoint in (place, *place.parents):
        raise RunFolderError(f"{target} must not be inside the checkpoint; choose another folder with --to")
    config, _ = read_object(folder.config_file)
    _copy(source, target, force=force)
    write_origin(target, config, run=folder.name, step=step)
    write_card(target, folder, config, step)
    return usage_lines(config, target, str(target.absolute()), example_of(folder))


def chosen_step(folder: RunFolder, *, best: bool, step: int | None) -> int:
    """Return the step of the chosen checkpoint: the best one, the one at `step`, or by default the latest.

    Raises `CheckpointError` if the run has no such checkpoint.
    """
    steps = folder.checkpoint_steps()
    if not steps:
        raise CheckpointError(
            f"{folder.name} has no checkpoint; choose another run, or lower checkpoint.every_num_steps"
        )
    available = f"available: {', '.join(map(str, steps))}"
    if best:
        chosen = folder.best_checkpoint_step()
        if chosen is None or chosen not in steps:
            raise CheckpointError(
                f"{folder.name} has no best checkpoint, since that requires checkpoint.keep_best and an "
                f"evaluation on validation problems; choose --step N ({available})"
            )
        return chosen
    if step is None:
        return steps[-1]
    if step not in steps:
        nearest = min(steps, key=lambda other: abs(other - step))
        raise CheckpointError(
            f"{folder.name} has no checkpoint at step {step}; choose another step, such as --step "
            f"{nearest} ({available})"
        )
    return step


def check_policy(source: Path) -> None:
    """Raise `CheckpointError` unless the folder `source` contains a complete policy.

    If the folder is part of a checkpoint, the files must also be unchanged.
    """
    has_weights = any(any(source.glob(pattern)) for pattern in _WEIGHTS)
    if not (source / "config.json").is_file() or not has_weights:
        raise CheckpointError(
            f"{source} is not a complete policy, since config.json or the weights are missing; choose "
            "another checkpoint with --step N"
        )
    if any((source.parent / name).exists() for name in (STATE, DIGESTS)):  # otherwise not in a checkpoint
        check_files(source.parent, below=f"{POLICY_FOLDER}/")


def _copy(source: Path, target: Path, *, force: bool) -> None:
    """Copy a folder without its adapters to `target`.

    The copy is written next to `target` and then renamed, so that `target` is never incomplete.
    """
    if target.exists() or target.is_symlink():
        _check_replaceable(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY_PREFIX}export-{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(_ADAPTER_FOLDER))
        if target.is_dir():
            shutil.rmtree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)


def _check_replaceable(target: Path, *, force: bool) -> None:
    """Raise `RunFolderError` unless `target` is an empty folder or, with `force`, an earlier export."""
    if target.is_symlink() or not target.is_dir():
        raise RunFolderError(f"{target} exists and is not a folder; choose another folder with --to")
    entries = list(target.iterdir())
    if not entries:
        return
    is_export = any((target / name).is_file() for name in ("config.json", "adapter_config.json")) and all(
        entry.is_file() for entry in entries
    )
    if not is_export or not any(any(target.glob(pattern)) for pattern in _WEIGHTS):
        raise RunFolderError(
            f"{target} exists and is not an exported policy, so it cannot be replaced; choose another "
            "folder with --to"
        )
    if not force:
        raise RunFolderError(f"{target} exists; replace it with --force, or choose another folder with --to")
