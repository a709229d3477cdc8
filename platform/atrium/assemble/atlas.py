"""The atlas: methods grouped by equal gradients on the rollouts of a run or table, or on random rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from atrium.base.errors import ConfigError
from atrium.config.presets import Preset, read_presets
from atrium.document.document import Document, Picture
from atrium.imports.token_logprobs import rows_by_step
from atrium.runs.run_folder import RunFolder

_Step = TypeVar("_Step")
Steps = Sequence[Sequence[Mapping[str, Any]]]

SPREADS = (0.02, 0.1, 1.0)
NUM_BATCHES = 6
_MAX_GROUPS = 16
_COLUMNS = ("problem_id", "reward", "logprobs", "ratio", "own")


@dataclass(frozen=True, kw_only=True)
class Atlas:
    """A comparison of the methods' gradients: a document, its figures, and the numbers for JSON."""

    document: Document
    pictures: list[Picture]
    numbers: Mapping[str, object]


def make_atlas(
    presets: Sequence[Preset],
    steps: Steps = (),
    name: str = "",
    *,
    spreads: Sequence[float] = SPREADS,
    num_batches: int = NUM_BATCHES,
) -> Atlas:
    """Group the methods of `presets` by equal gradients on the rollouts in `steps`.

    If `steps` is empty, `num_batches` batches of random rollouts are used. `name` describes the source of the
    rollouts in the document. `spreads` are the assumed distances of the current policy from the policy at the
    start of a step (standard deviations of log-ratios, in nats). Raises `ConfigError` if `steps` contains
    rollouts but none that has log-probabilities as well as a reward, or if fewer than two methods can be
    compared.
    """
    # These modules import torch.
    from atrium.theory import atlas
    from atrium.theory.atlas_document import atlas_document, atlas_pictures, records

    rollouts = [one for rows in steps if (one := atlas.recorded(rows, _MAX_GROUPS)) is not None]
    if steps and not rollouts:
        raise ConfigError(f"{name}: the stored rollouts have no log-probabilities; choose another run")
    source = f"{len(rollouts)} stored steps of {name}, at most {_MAX_GROUPS} groups of each"
    has_ratios = any(row.get("ratio") for rows in steps for row in rows)
    if not rollouts:
        rollouts = [atlas.synthetic(seed) for seed in range(num_batches)]
        source = f"{num_batches} batches of random rollouts with rewards of 0 and 1"
    drifts = [
        atlas.Drift(name="one update"),
        atlas.Drift(name="stale rollouts", staleness=0.1),
        atlas.Drift(name="other engine", mismatch=0.01),
        *([atlas.Drift(name="as recorded", spread=None)] if has_ratios else []),
        *(atlas.Drift(name=f"spread {spread:g}", spread=spread) for spread in spreads),
    ]
    methods = {one.name: one.method for one in presets}
    left_out = [name for name, one in methods.items() if not all(atlas.can_compute(one, d) for d in drifts)]
    methods = {name: one for name, one in methods.items() if name not in left_out}
    if len(methods) < 2:
        raise ConfigError(
            "atrium atlas requires at least two methods that do not compare whole distributions; give "
            "more --methods"
        )
    found = [atlas.partition(methods, rollouts, drift) for drift in drifts]
    return Atlas(
        document=atlas_document(found, source, left_out),
        pictures=atlas_pictures(found),
        numbers={"source": source, "left_out": left_out, "partitions": records(found)},
    )


def steps_of_run(folder: RunFolder, num_steps: int = NUM_BATCHES) -> Steps:
    """Return the stored rollouts of at most `num_steps` evenly spaced steps of a run, in one list per step.

    Raises `ConfigError` if the run has no stored rollouts, and `RunFolderError` if a file is damaged.
    """
    from atrium.runs.sample_files import read_samples

    paths = sorted(folder.rollouts_dir.glob("*.parquet"))
    if not paths:
        raise ConfigError(
            f"{folder.name} has no stored rollouts; choose another run, or give no run to use synthetic "
            "rollouts"
        )
    return [read_samples(path, _COLUMNS) for path in _spread(paths, num_steps)]


def steps_of_table(path: Path, columns: Mapping[str, str], num_steps: int = NUM_BATCHES) -> Steps:
    """Return the rollouts of at most `num_steps` evenly spaced steps of a table, in one list per step.

    `columns` has the same meaning as in `rows_by_step`, and the same errors are raised.
    """
    return _spread(rows_by_step(path, columns), num_steps)


def _spread(steps: Sequence[_Step], num_steps: int) -> Sequence[_Step]:
    """Return at most `num_steps` evenly spaced steps, including the first and the last one."""
    num = min(num_steps, len(steps))
    return [steps[place * (len(steps) - 1) // max(1, num - 1)] for place in range(num)]


def page_of(folder: RunFolder | None) -> Document:
    """Return the atlas of all shipped methods as a page with figures.

    `folder` is a run with stored rollouts; None means random rollouts.
    """
    steps = () if folder is None else steps_of_run(folder)
    made = make_atlas(read_presets(), steps, folder.name if folder else "")
    figures = [one.figures for one in made.pictures]
    sections = zip(made.document.sections, figures, strict=True)
    return replace(made.document, sections=tuple(replace(one, figures=own) for one, own in sections))
