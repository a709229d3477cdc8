"""Tables of any program: a row per answer, its columns mapped to roles by the user or by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.nested import flattened, setting
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Source, Stated, correctness, whole_number
from atrium.imports.files import rows

ROLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "method": (("method", "algorithm", "arm"), ("model", "model_name", "system", "policy")),
    "seed": (("seed", "random_seed", "training_seed", "train_seed"),),
    "benchmark": (("benchmark",), ("dataset", "task", "task_name", "data_source")),
    "step": (("step", "global_step", "training_step", "train_step"),),
    "problem": (
        (
            "problem_id",
            "question_id",
            "prompt_id",
            "task_id",
            "example_id",
            "item_id",
            "doc_id",
            "problem_idx",
        ),
        ("problem", "id", "uid", "idx", "index"),
    ),
    "question": (("question", "problem_text", "prompt", "query", "input"),),
    "sample": (
        ("sample", "sample_index", "sample_id", "sample_idx", "rollout", "attempt", "completion_index"),
    ),
    "score": (
        ("correct", "is_correct", "correctness"),
        ("score", "acc", "accuracy", "exact_match", "passed", "reward", "success"),
    ),
    "gold": (("gold", "target", "ground_truth", "gts", "reference"), ("answer", "solution")),
    "text": (("text", "completion", "response", "output", "generation", "prediction"),),
    "tokens": (("num_tokens", "completion_tokens", "output_tokens", "completion_length"),),
}
"""Names of columns by role, the most specific first; two names of one rank are ambiguous."""
_OPTIONAL = ("gold", "text", "question", "tokens")
_TEXTS = ("method", "benchmark", "problem", "question", "gold", "sample", "text")
_LONGEST_ID = 200


def read_table(path: Path, stated: Stated) -> Source:
    """Read a table. Raises `ConfigError` for a mapping that does not fit, `DataError` for a damaged file."""
    found = rows(path)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path}: contains no rows")
    columns = mapped_columns(path, first[1], stated)
    words = [f"{role} is column {column}" for role, column in columns.items()]
    if "method" not in columns and not stated.method:
        raise ConfigError(
            f"{path}: no column names the method; give --map method=COLUMN, or --method NAME for all rows"
        )
    words += [f"{name} is {value}" for name, value in _constants(stated).items()]
    if "seed" not in columns and stated.seed is None:
        words.append("the seed is not stated: the file counts as one seed")
    if "sample" not in columns:
        words.append("repeated rows of a problem are its samples")
    answers = (_answer(row, columns, stated, place) for place, row in chain([first], found))
    return Source(path=path, format="table", mapping=tuple(words), answers=answers)


def mapped_columns(path: Path, row: Row, stated: Stated) -> dict[str, str]:
    """The column of each role. Columns below others in JSON have dotted names.

    Raises `ConfigError` for a column that does not exist, a role without one, or one that is ambiguous.
    """
    names = list(dict.fromkeys([*row, *flattened(row)]))
    for role, column in stated.columns.items():
        if role not in ROLES:
            raise ConfigError(f"--map {role}={column}: {role} is no role; they are {', '.join(ROLES)}")
        if column not in names:
            raise ConfigError(f"{path}: --map {role}={column}: the columns are {_listed(names)}")
    columns = dict(stated.columns)
    for role in ROLES:
        if role in columns or role in _constants(stated):
            continue
        fitting = _fitting(role, [name for name in names if name not in stated.columns.values()])
        if role == "problem" and len(fitting) == 1 and _is_question(row, fitting[0]):
            columns.setdefault("question", fitting[0])
            continue
        if len(fitting) == 1:
            columns.setdefault(role, fitting[0])
        elif fitting and role not in _OPTIONAL:
            raise ConfigError(
                f"{path}: {' and '.join(fitting)} could each be the {role}; give --map {role}=COLUMN"
            )
    if "problem" not in columns and "question" not in columns:
        raise ConfigError(
            f"{path}: no problem column among {_listed(names)}; give --map problem=COLUMN. For a "
            "mean score per method, `atrium audit` states what it supports"
        )
    if "score" not in columns:
        raise ConfigError(f"{path}: no score column among {_listed(names)}; give --map score=COLUMN")
    return {role: columns[role] for role in ROLES if role in columns}


def _constants(stated: Stated) -> dict[str, object]:
    known = {"method": stated.method, "seed": stated.seed, "benchmark": stated.benchmark, "step": stated.step}
    return {name: value for name, value in known.items() if value not in (None, "")}


def _fitting(role: str, names: Sequence[str]) -> list[str]:
    """The columns of the most specific rank of a role that has any."""
    plain = {name: name.lower().strip().replace(" ", "_").replace("-", "_") for name in names}
    for rank in ROLES[role]:
        if found := [name for name in names if plain[name] in rank]:
            return found
    return []


def _is_question(row: Row, column: str) -> bool:
    value = row.get(column)
    return isinstance(value, str) and (len(value) > _LONGEST_ID or " " in value.strip())


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _answer(row: Row, columns: Mapping[str, str], stated: Stated, place: str) -> Answer:
    values = {
        role: row[column] if column in row else setting(row, column) for role, column in columns.items()
    }
    texts = {role: _text(values[role]) for role in _TEXTS if role in values}

    def number(role: str, known: int | None) -> int | None:
        found = values.get(role)
        return known if found is None or found == "" else whole_number(found, role, place)

    method = texts.get("method") or stated.method
    if not method:
        raise DataError(f"{place}: the method is missing")
    problem, question = texts.get("problem", ""), texts.get("question", "")
    if not problem and not question:
        raise DataError(f"{place}: the problem is missing")
    seed = number("seed", stated.seed)
    if "seed" in columns and seed is None:
        raise DataError(f"{place}: the seed is missing")
    return Answer(
        method=method,
        is_correct=correctness(values.get("score"), stated, place),
        place=place,
        seed=seed,
        benchmark=texts.get("benchmark") or stated.benchmark or "imported",
        step=number("step", stated.step) or 0,
        problem=problem.removesuffix(".0") if isinstance(values.get("problem"), float) else problem,
        question=question,
        gold=texts.get("gold", ""),
        sample=texts.get("sample") or None,
        text=texts.get("text", ""),
        num_tokens=number("tokens", None),
    )


def _text(value: object) -> str:
    if type(value) is str:
        return value
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return conversation_text(value) if isinstance(value, list | dict) else str(value)


def conversation_text(value: object) -> str:
    """The text of a prompt or completion: a string, or the contents of a conversation's turns."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(conversation_text, value)))
    if isinstance(value, Mapping):
        return conversation_text(value.get("content"))
    return "" if value is None else str(value)
