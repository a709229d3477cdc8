"""Detection of a file's format from its name, columns and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atrium.base.errors import DataError
from atrium.base.rows import Row
from atrium.imports.answers import Source, Stated
from atrium.imports.evaluators import is_lighteval, is_lm_eval, read_lighteval, read_lm_eval
from atrium.imports.files import rows
from atrium.imports.mlflow_runs import (
    is_mlflow_database,
    is_mlflow_run,
    read_mlflow_database,
    read_mlflow_run,
)
from atrium.imports.prime_rl import (
    is_episodes,
    is_metrics_log,
    is_repeated,
    read_episodes,
    read_metrics_log,
)
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
from atrium.imports.wandb_file import is_wandb_file, read_wandb_file
from atrium.imports.wandb_server import is_fetched, read_fetched

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")

_READERS: tuple[tuple[Callable[[Path, Row], bool], Callable[[Path, Row, Stated], Source]], ...] = (
    (is_lm_eval, read_lm_eval),
    (is_lighteval, read_lighteval),
    (is_trl_completions, read_trl_completions),
    (is_verl_dump, read_verl_dump),
    (is_verl_log, read_verl_log),
    (is_episodes, read_episodes),
    (is_metrics_log, read_metrics_log),
    (is_wandb_csv, read_wandb_csv),
)
"""Formats recognized by a file's name and first row, which their readers receive; others are tables."""


_WHOLE: tuple[tuple[Callable[[Path], bool], Callable[[Path, Stated], Source]], ...] = (
    (lambda path: path.name == TRAINER_STATE, read_trainer_state),
    (is_tensorboard, read_tensorboard),
    (is_wandb_file, read_wandb_file),
    (is_fetched, read_fetched),
    (is_mlflow_database, read_mlflow_database),
    (is_mlflow_run, read_mlflow_run),
)
"""Formats recognized by the file's name alone, since their files do not consist of rows."""


def is_source(path: Path) -> bool:
    """Return whether an import of a directory reads this file, judged by the file's name.

    Files that only accompany others, such as the results of lm-eval, are not sources.
    """
    if path.suffix.lower() in TABLES:
        return not is_repeated(path)
    if is_mlflow_database(path):
        return path.name.startswith("mlflow")  # other programs use databases, too
    return any(fits(path) for fits, _ in _WHOLE)


def read_source(path: Path, stated: Stated) -> Source:
    """Read a file of any known format; raise `DataError` if the format is unknown or the file has no rows."""
    for fits_name, read in _WHOLE:
        if fits_name(path):
            return read(path, stated)
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"{path} has an unknown format; choose a table ({', '.join(TABLES)}), a file of a supported "
            "program, or a directory of such files"
        )
    first = next(rows(path), None)
    if first is None:
        raise DataError(f"{path} contains no rows; choose another file")
    _, row = first
    read_rows = next((read for fits, read in _READERS if fits(path, row)), read_table)
    return read_rows(path, row, stated)
