"""Tables of graded answers from any training program, checked against the design of a claim.

A table has one row per answer, with the columns run, method, seed, problem, sample and correct. `method`
is the name of an arm, and `seed` is a seed of the design. Every run must answer every problem, with the
design's number of samples. The suffix of the file determines its format: CSV, JSONL or Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from atrium.base.errors import ConfigError, reason_of
from atrium.base.plain_files import open_plain
from atrium.compare.outcomes import Answers

COLUMNS = ("run", "method", "seed", "problem", "sample", "correct")
_READERS = {
    ".csv": pa_csv.read_csv,
    ".jsonl": pa_json.read_json,
    ".parquet": pa_parquet.read_table,
}
_NAME = "table"


def read_table(
    paths: Sequence[Path], *, arms: Sequence[str], seeds: Sequence[int], num_samples: int
) -> Mapping[str, Mapping[int, Sequence[Answers]]]:
    """Read the answers in one or more tables, and return them by arm and seed.

    All tables together form one benchmark, so the sequence for an arm and seed has a single element. Raises
    `ConfigError` with a one-line message if a table cannot be read, or if the answers do not match the arms,
    seeds and samples of the design.
    """
    correct: dict[tuple[str, int], dict[tuple[str, int], bool]] = {}
    run_of: dict[tuple[str, int], str] = {}
    for path in paths:
        for number, row in enumerate(_rows(path), start=1):
            method, seed, sample, run = row["method"], row["seed"], row["sample"], str(row["run"])
            if (problem := _mistake(row, arms, seeds, num_samples)) is None:
                cells, cell = correct.setdefault((method, seed), {}), (str(row["problem"]), sample)
                if (known := run_of.setdefault((method, seed), run)) != run:
                    problem = f"{method} with seed {seed} must be one run, got {known} and {run}"
                elif cell in cells:
                    problem = f"sample {sample} of problem {cell[0]} appears twice"
                cells[cell] = bool(row["correct"])
            if problem is not None:
                raise ConfigError(f"{path}, row {number}: {problem}")
    return {arm: {seed: [_answers_of(correct, arm, seed, num_samples)] for seed in seeds} for arm in arms}


def _rows(path: Path) -> list[dict[str, Any]]:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConfigError(f"{path}: the file name must end in {' or '.join(_READERS)}")
    try:
        with open_plain(path) as file:
            table = reader(file)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise ConfigError(
            f"{path}: column {missing[0]} is missing; the required columns are {', '.join(COLUMNS)}"
        )
    if not table.num_rows:
        raise ConfigError(f"{path} contains no rows; add at least one")
    for name in COLUMNS:
        if pc.any(pc.is_null(table.column(name))).as_py():
            raise ConfigError(
                f"{path}: column {name} must have a value in every row; fill in the missing values"
            )
    rows: list[dict[str, Any]] = table.select(COLUMNS).to_pylist()
    return rows


def _mistake(
    row: Mapping[str, Any], arms: Sequence[str], seeds: Sequence[int], num_samples: int
) -> str | None:
    """Return a message about the first value in a row that is invalid or not in the design.

    Returns None if all values are valid.
    """
    method, seed, sample = row["method"], row["seed"], row["sample"]
    if method not in arms:
        return f"unknown method {method}; the claim's arms are {' and '.join(arms)}"
    if not isinstance(seed, int) or seed not in seeds:
        return f"seed {seed} is not in the design; its seeds are {', '.join(map(str, seeds))}"
    if not isinstance(sample, int) or not 0 <= sample < num_samples:
        return f"sample must be a whole number from 0 to {num_samples - 1}, got {sample}"
    if row["correct"] not in (0, 1):
        return f"correct must be true, false, 1 or 0, got {row['correct']}"
    return None


def _answers_of(
    correct: Mapping[tuple[str, int], Mapping[tuple[str, int], bool]], arm: str, seed: int, num_samples: int
) -> Answers:
    """Return the number of correct answers to each problem, for one arm and seed.

    `correct` maps each (arm, seed) to a mapping from (problem, sample) to the grade. Raises `ConfigError` if
    this arm and seed lack any of the `num_samples` samples of a problem that occurs in the tables.
    """
    cells = correct.get((arm, seed))
    if cells is None:
        raise ConfigError(
            f"the table has no rows of {arm} with seed {seed}, which the design requires; add them"
        )
    num_correct = {}
    for problem in sorted({problem for known in correct.values() for problem, _ in known}):
        given = [cells[problem, sample] for sample in range(num_samples) if (problem, sample) in cells]
        if len(given) != num_samples:
            raise ConfigError(
                f"expected {num_samples} samples of problem {problem} by {arm} with seed {seed}, got "
                f"{len(given)}; correct the table"
            )
        num_correct[problem] = sum(given)
    return Answers(benchmark=_NAME, step=0, num_samples=num_samples, num_correct=num_correct)
