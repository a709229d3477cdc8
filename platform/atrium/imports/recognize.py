"""Which program wrote a file, read off its name, columns and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atrium.base.errors import DataError
from atrium.imports.answers import Source, Stated
from atrium.imports.evaluators import is_lighteval, is_lm_eval, read_lighteval, read_lm_eval
from atrium.imports.files import Row, rows
from atrium.imports.tables import read_table
from atrium.imports.trackers import is_tensorboard, is_wandb_csv, read_tensorboard, read_wandb_csv
from atrium.imports.trainers import (
    TRAINER_STATE,
    is_trl_completions,
    is_verl_dump,
    is_verl_log,
    read_trainer_state,
    read_trl_completions,
    read_verl_dump,
    read_verl_log,
)

TABLES = (".csv", ".jsonl", ".parquet")

Reader = Callable[[Path, Stated], Source]
_READERS: tuple[tuple[Callable[[Path, Row], bool], Reader], ...] = (
    (is_lm_eval, read_lm_eval),
    (is_lighteval, read_lighteval),
    (is_trl_completions, read_trl_completions),
    (is_verl_dump, read_verl_dump),
    (is_verl_log, read_verl_log),
    (is_wandb_csv, read_wandb_csv),
)
"""Formats of programs, told apart by a file's name and first row; any other file of rows is a table."""


def is_source(path: Path) -> bool:
    """Whether a file of a directory is read by itself; results of lm-eval are read beside their samples."""
    return path.suffix.lower() in TABLES or path.name == TRAINER_STATE or is_tensorboard(path)


def read_source(path: Path, stated: Stated) -> Source:
    """The content of a file. Raises `DataError` for a file that is none of the known formats."""
    if path.name == TRAINER_STATE:
        return read_trainer_state(path, stated)
    if is_tensorboard(path):
        return read_tensorboard(path, stated)
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"{path}: expected {TRAINER_STATE}, a file that ends in {', '.join(TABLES)}, or a directory"
        )
    first = next(rows(path), None)
    if first is None:
        raise DataError(f"{path}: holds no rows")
    for fits, read in _READERS:
        if fits(path, first[1]):
            return read(path, stated)
    return read_table(path, stated)
