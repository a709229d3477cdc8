"""Tables of answers from any trainer: rows of (run, method, seed, problem, sample, correct) held to a design.

A method is an arm's name, a seed one of the design's; every run answers every problem, each as often as the
design has it. CSV, JSONL or Parquet, told apart by the name's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from atrium.base.errors import ConfigError
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
    """Answers by arm and seed. Raises `ConfigError`, in one line, for what is not of the design."""
    correct: dict[tuple[str, int], dict[tuple[str, int], bool]] = {}
    run_of: dict[tuple[str, int], str] = {}
    for path in paths:
        for number, row in enumerate(_rows(path), start=1):
            where = f"{path}, row {number}"
            key, answer = _key(row, arms, seeds, num_samples, where), _answer(row, where)
            if run_of.setdefault(key, str(row["run"])) != str(row["run"]):
                raise ConfigError(
                    f"{where}: {key[0]} with seed {key[1]} is run {run_of[key]} and run {row['run']}; a seed "
                    "is used once"
                )
            cells = correct.setdefault(key, {})
            cell = (str(row["problem"]), int(row["sample"]))  # type: ignore[call-overload]
            if cell in cells:
                raise ConfigError(f"{where}: sample {cell[1]} of problem {cell[0]} stands there twice")
            cells[cell] = answer
    return _counted(correct, arms, seeds, num_samples)


def _rows(path: Path) -> list[dict[str, object]]:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConfigError(f"{path}: allowed are {', '.join(_READERS)}")
    try:
        with open_plain(path) as file:
            table = reader(file)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise ConfigError(f"{path}: has no column {missing[0]}; needed are {', '.join(COLUMNS)}")
    if not table.num_rows:
        raise ConfigError(f"{path}: holds no rows")
    for name in COLUMNS:
        if pc.any(pc.is_null(table.column(name))).as_py():
            raise ConfigError(f"{path}: column {name} lacks values; every row has all of them")
    rows: list[dict[str, object]] = table.select(COLUMNS).to_pylist()
    return rows


def _key(
    row: Mapping[str, object], arms: Sequence[str], seeds: Sequence[int], num_samples: int, where: str
) -> tuple[str, int]:
    method, seed, sample = row["method"], row["seed"], row["sample"]
    if method not in arms:
        raise ConfigError(f"{where}: method {method} is none of the claim's arms {' and '.join(arms)}")
    if not isinstance(seed, int) or seed not in seeds:
        listed = ", ".join(str(one) for one in seeds)
        raise ConfigError(f"{where}: seed {seed} is not of the design, whose seeds are {listed}")
    if not isinstance(sample, int) or not 0 <= sample < num_samples:
        raise ConfigError(f"{where}: sample {sample}; the design has samples 0 to {num_samples - 1}")
    return str(method), seed


def _answer(row: Mapping[str, object], where: str) -> bool:
    if row["correct"] not in (0, 1):
        raise ConfigError(f"{where}: correct is {row['correct']}; allowed are true and false, or 1 and 0")
    return bool(row["correct"])


def _counted(
    correct: Mapping[tuple[str, int], Mapping[tuple[str, int], bool]],
    arms: Sequence[str],
    seeds: Sequence[int],
    num_samples: int,
) -> Mapping[str, Mapping[int, Sequence[Answers]]]:
    problems = sorted({problem for cells in correct.values() for problem, _ in cells})
    counted: dict[str, dict[int, Sequence[Answers]]] = {arm: {} for arm in arms}
    for arm in arms:
        for seed in seeds:
            cells = correct.get((arm, seed))
            if cells is None:
                raise ConfigError(f"the table has no rows of {arm} with seed {seed}, which the design has")
            for problem in problems:
                given = sum((problem, sample) in cells for sample in range(num_samples))
                if given != num_samples:
                    raise ConfigError(
                        f"the table has {given} samples of problem {problem} by {arm} with seed {seed}; the "
                        f"design has {num_samples}"
                    )
            num_correct = {
                problem: sum(cells[problem, sample] for sample in range(num_samples)) for problem in problems
            }
            answers = Answers(benchmark=_NAME, step=0, num_samples=num_samples, num_correct=num_correct)
            counted[arm][seed] = [answers]
    return counted
