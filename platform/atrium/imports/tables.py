"""Reader of tables with one row per answer.

Each column that is read has a role, such as `score`. Roles are assigned by `--map` or by the columns' names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.nested import flattened, setting
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Source, Stated, correctness, whole_number
from atrium.imports.files import rows

Ranks = tuple[tuple[str, ...], ...]
ROLES: Mapping[str, Ranks] = {
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
"""Known column names by role, in ranks of decreasing precedence; two names of one rank are ambiguous."""
_OPTIONAL = ("gold", "text", "question", "tokens")
_TEXTS = ("method", "benchmark", "problem", "question", "gold", "sample", "text")
_LONGEST_ID = 200


def read_table(path: Path, first: Row, stated: Stated) -> Source:
    """Read a table whose first row is `first`; raise `ConfigError` for an invalid mapping."""
    columns = mapped_columns(path, first, stated)
    words = [f"{role} is column {column}" for role, column in columns.items()]
    if "method" not in columns and not stated.method:
        raise ConfigError(
            f"{path} has no method column, only {_listed(_names(first))}; give --map method=COLUMN, or "
            "--method NAME for all rows"
        )
    words += [f"{name} is {value}" for name, value in _constants(stated).items()]
    if "seed" not in columns and stated.seed is None:
        words.append("no seed is stated: the file counts as one seed")
    if "sample" not in columns:
        words.append("repeated rows of a problem count as its samples")
    answers = (_answer(row, columns, stated, place) for place, row in rows(path))
    return Source(path=path, format="table", mapping=tuple(words), answers=answers)


def mapped_columns(path: Path, row: Row, stated: Stated) -> dict[str, str]:
    """Return the column of each role that has one.

    A key in a nested JSON object is a column with a dotted name.

    Raises `ConfigError` in the cases named in `chosen_columns`, and also if no column has the role `score`,
    or if no column has the role `problem` or `question`.
    """
    columns = chosen_columns(path, row, stated.columns, ROLES, _constants(stated))
    if "problem" not in columns and "question" not in columns:
        raise ConfigError(
            f"{path} has no problem column, only {_listed(_names(row))}; give --map problem=COLUMN, or "
            "use `atrium audit` for a table of mean scores per method"
        )
    check_columns(path, row, columns, ["score"])
    return columns


def chosen_columns(
    path: Path,
    row: Row,
    stated: Mapping[str, str],
    roles: Mapping[str, Ranks],
    constants: Collection[str] = (),
) -> dict[str, str]:
    """Return the column of each role that has one: the stated column, or else one with a known name.

    Roles in `constants` have a fixed value and no column. If the only column with a name for `problem`
    contains text instead of an id, it becomes the column of `question`. Raises `ConfigError` for an unknown
    role, a stated column that does not exist or has a role in `constants`, and a role that several columns
    could have. An ambiguous role in `_OPTIONAL` raises no error and has no column.
    """
    names = _names(row)
    for role, column in stated.items():
        if role not in roles:
            raise ConfigError(f"--map {role}={column}: unknown role {role}; use one of {', '.join(roles)}")
        if column not in names:
            raise ConfigError(f"{path}: --map {role}={column}: unknown column; use one of {_listed(names)}")
        if role in constants:
            raise ConfigError(f"--map {role}={column} cannot be combined with --{role}; remove one of them")
    columns = dict(stated)
    for role in roles:
        if role in columns or role in constants:
            continue
        fitting = _fitting(roles[role], [name for name in names if name not in stated.values()])
        if role == "problem" and "question" in roles and len(fitting) == 1 and _is_question(row, fitting[0]):
            columns.setdefault("question", fitting[0])
            continue
        if len(fitting) == 1:
            columns.setdefault(role, fitting[0])
        elif fitting and role not in _OPTIONAL:
            raise ConfigError(
                f"{path}: the columns {' and '.join(fitting)} could each be the {role}; give --map "
                f"{role}=COLUMN"
            )
    return {role: columns[role] for role in roles if role in columns}


def check_columns(path: Path, row: Row, columns: Mapping[str, str], required: Sequence[str]) -> None:
    """Raise `ConfigError` if a required role has no column."""
    for role in required:
        if role not in columns:
            raise ConfigError(
                f"{path} has no {role} column, only {_listed(_names(row))}; give --map {role}=COLUMN"
            )


def _names(row: Row) -> list[str]:
    return list(dict.fromkeys([*row, *flattened(row)]))


def _constants(stated: Stated) -> dict[str, object]:
    known = {"method": stated.method, "seed": stated.seed, "benchmark": stated.benchmark, "step": stated.step}
    return {name: value for name, value in known.items() if value not in (None, "")}


def _fitting(ranks: Ranks, names: Sequence[str]) -> list[str]:
    """Return the columns in `names` that could have a role, or an empty list if there are none.

    `ranks` are sets of equally suitable column names for the role, in order of precedence. Only the first
    rank that contains any of the columns is used. Case is ignored, and spaces and hyphens count as
    underscores.
    """
    plain = {name: name.lower().strip().replace(" ", "_").replace("-", "_") for name in names}
    for rank in ranks:
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
        raise DataError(f"{place}: the method is missing; add it")
    problem, question = texts.get("problem", ""), texts.get("question", "")
    if not problem and not question:
        raise DataError(f"{place}: the problem is missing; add it")
    seed = number("seed", stated.seed)
    if "seed" in columns and seed is None:
        raise DataError(f"{place}: the seed is missing; add it")
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
    """Return the text of a prompt or completion; the turns of a conversation are joined by newlines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(conversation_text, value)))
    if isinstance(value, Mapping):
        return conversation_text(value.get("content"))
    return "" if value is None else str(value)
