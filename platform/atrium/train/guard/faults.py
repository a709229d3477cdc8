"""Records of updates that are skipped because their gradient is not finite, and a limit on their number.

The minibatch of a skipped update is written to the run directory as safetensors and JSON, with its
advantages, so that it can be inspected and repeated. The weights are in the checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from atrium.base.errors import TrainingDivergedError, reason_of
from atrium.engines.collate import RolloutRows
from atrium.method.objective import ObjectiveState
from atrium.models.shards import local_tensor

MAX_SAVED = 20
"""Maximum number of minibatches that are kept of one run; further ones are only counted."""

_ROW_ARRAYS = ("num_prompt_tokens_B", "num_tokens_B", "prompt_index_B")
_MAX_NAMES = 5


@dataclass(frozen=True, kw_only=True)
class UpdateState:
    """The state that failed updates pass on to later steps. It is saved in every checkpoint.

    `num_skipped` counts the updates skipped since the last successful update. `micro_batch_tokens` is the
    reduced limit if memory ran out, or None if the configured limit still applies.
    """

    num_skipped: int = 0
    micro_batch_tokens: int | None = None


NO_FAULTS = UpdateState()
"""The state before the first step."""


@dataclass(frozen=True, kw_only=True)
class SkippedUpdate:
    """An update whose gradient was not finite: its minibatch, and the affected parameters.

    `update` is the number of the attempted update within the step, counted from 1.
    """

    step: int
    update: int
    grad_norm: float
    parameters: tuple[str, ...]
    state: ObjectiveState
    rows: RolloutRows


@dataclass(frozen=True, kw_only=True)
class FaultHandling:
    """The rule for updates whose gradient is not finite.

    Up to `max_skipped` consecutive updates may be skipped. One more ends the run. The minibatches of the
    first `MAX_SAVED` such updates are written to `folder`, unless it is None.
    """

    max_skipped: int = 0
    folder: Path | None = None
    log: Callable[[str], None] = lambda _: None

    def handle(self, skipped: SkippedUpdate, num_in_a_row: int) -> None:
        """Save and report a skipped update, the last of `num_in_a_row` consecutive ones.

        Raises `TrainingDivergedError` for more than `max_skipped` in a row.
        """
        kept = self._kept(skipped)
        what = f"the gradient of step {skipped.step} is not finite (norm {skipped.grad_norm}"
        if skipped.parameters:
            what += f"; {_listed(skipped.parameters)}"
        if num_in_a_row > self.max_skipped:
            row = f", {num_in_a_row} updates in a row" if num_in_a_row > 1 else ""
            raise TrainingDivergedError(
                f"{what}){row}; lower optimizer.learning_rate or set a lower algorithm.log_ratio_limit; "
                f"{kept}; the last checkpoint is intact"
            )
        self.log(
            f"{what}); update {skipped.update} is skipped, {num_in_a_row} of at most {self.max_skipped} "
            f"in a row; {kept}"
        )

    def _kept(self, skipped: SkippedUpdate) -> str:
        """Write the minibatch, and return a phrase that says where it is, or why it was not written."""
        if self.folder is None:
            return "its minibatch is not kept"
        path = self.folder / f"step-{skipped.step:06d}-update-{skipped.update}"
        others = {found.stem for found in self.folder.glob("*.json")} - {path.name}
        if len(others) >= MAX_SAVED:
            return f"its minibatch is not kept, since {self.folder} already has {len(others)}"
        try:
            write_minibatch(skipped, path)
        except (OSError, SafetensorError) as error:
            return f"its minibatch could not be kept in {self.folder} ({reason_of(error)})"
        return f"its minibatch is {path}.safetensors"


def unfinite_parameters(gradients: Mapping[str, Tensor | None]) -> tuple[str, ...]:
    """Return the names of this process's gradients that contain NaN or infinity."""
    return tuple(
        name
        for name, value in gradients.items()
        if value is not None and not bool(local_tensor(value).isfinite().all())
    )


def write_minibatch(skipped: SkippedUpdate, path: Path) -> None:
    """Write a skipped update's minibatch to `path`.safetensors, and its other data to `path`.json.

    Raises `OSError` or `SafetensorError` if a file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, batch = skipped.rows, skipped.rows.batch
    tensors: dict[str, Tensor | None] = {
        "token_BL": rows.token_BL,
        "live_B": rows.live_B,
        "proximal_state_BTD": rows.proximal_state_BTD,
        **{name: torch.from_numpy(getattr(rows, name)) for name in _ROW_ARRAYS},
        **{f"batch/{field.name}": getattr(batch, field.name) for field in fields(batch)},
    }
    save_file(
        {name: value.cpu().contiguous() for name, value in tensors.items() if value is not None},
        path.with_name(f"{path.name}.safetensors"),
    )
    record = {
        "step": skipped.step,
        "update": skipped.update,
        "grad_norm": str(skipped.grad_norm),
        "parameters": skipped.parameters,
        "state": asdict(skipped.state),
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"in {shown}" + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
