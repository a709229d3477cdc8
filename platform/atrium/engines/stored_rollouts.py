"""Stored completions, read from Parquet files and matched to their problems.

Two formats are read: a run's recorded `rollouts/`, and a user's table. A table has the columns `problem_id`
or `prompt` (the problem's question), and `completion` or `text`. Optional columns are `reward`, `token_ids`,
`logprobs` (one per token, including the stop token), `finish_reason` (`stop`, the default, or `length`) and
`own` (for each of `token_ids`, True if the policy sampled the token, and False otherwise, such as for a token
that a tool wrote). This module needs no model and no tokenizer; `completion_bank` converts text to tokens.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atrium.base.errors import DataError, reason_of
from atrium.base.plain_files import open_plain
from atrium.base.records import FinishReason, Logprobs, OwnTokens, Problem

_ALTERNATIVES = {"prompt": ("question",), "completion": ("text",)}
"""Alternative column names, as in a run's own rollouts."""
_KNOWN = ("problem_id", "prompt", "completion", "reward", "token_ids", "logprobs", "finish_reason", "own")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredCompletion:
    """A stored completion with its problem. `where` names its file and row in error messages.

    Optional values that the file does not contain are None, except for `finish_reason`, which is then `stop`.
    """

    where: str
    problem: Problem
    text: str
    finish_reason: FinishReason
    reward: float | None
    token_ids: NDArray[np.int64] | None
    logprobs: Logprobs | None
    own: OwnTokens | None = None


def read_stored(paths: Sequence[Path], problems: Sequence[Problem]) -> list[StoredCompletion]:
    """Read the completions of all files, in order, each with its problem.

    A row is matched to a problem by its `problem_id`. If the row also has a question, it must be the
    problem's question. Rows without an id are matched by their question, ignoring white space at both ends.
    Raises `DataError` for a file that cannot be read, for a column that is missing or has the wrong type, for
    a row that matches no problem or contains an invalid value, and if there are no rows at all.
    """
    by_id = {problem.problem_id: problem for problem in problems}
    by_question = {problem.question.strip(): problem for problem in problems}
    found = []
    for path in paths:
        for row_number, row in enumerate(_rows(path), start=1):
            where = f"row {row_number} of {path}"
            problem = _matched(where, row, by_id, by_question)
            found.append(_completion(where, row, problem))
    if not found:
        raise DataError(
            f"{', '.join(map(str, paths)) or 'the folder'} contains no completions; choose another "
            "rollout.source"
        )
    return found


def stored_files(source: Path) -> list[Path]:
    """Return the Parquet files of a source: the file itself, or all files in a folder, sorted by name.

    Raises `DataError` if there is none.
    """
    if source.is_file():
        return [source]
    files = sorted(source.glob("*.parquet")) if source.is_dir() else []
    if not files:
        raise DataError(
            f"rollout.source={source}: there are no Parquet files; use a run that recorded rollouts, a "
            "folder of Parquet files, or a Parquet file"
        )
    return files


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield each row of a file as a mapping with keys from `_KNOWN`. Missing columns have no key."""
    try:
        with open_plain(path) as plain, pq.ParquetFile(plain) as file:
            present = set(file.schema_arrow.names)
            named = {name: found for name in _KNOWN if (found := _column(name, present)) is not None}
            _check_columns(path, present, named)
            _check_types(path, file.schema_arrow, named)
            for batch in file.iter_batches(columns=list(named.values())):
                yield from batch.select(list(named.values())).rename_columns(list(named)).to_pylist()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)}); restore the file") from error
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a valid Parquet file ({reason_of(error)}); restore it") from error


def _column(name: str, present: set[str]) -> str | None:
    return next((found for found in (name, *_ALTERNATIVES.get(name, ())) if found in present), None)


def _check_columns(path: Path, present: set[str], named: Mapping[str, str]) -> None:
    missing = [] if "completion" in named else ["completion (or text)"]
    if "prompt" not in named and "problem_id" not in named:
        missing.append("prompt (or question, or problem_id)")
    if missing:
        has = ", ".join(sorted(present)) or "none"
        raise DataError(
            f"{path}: required columns are missing: {'; '.join(missing)}; add them (the file has {has})"
        )


def _check_types(path: Path, schema: pa.Schema, named: Mapping[str, str]) -> None:
    for name, column in named.items():
        words, is_right = _TYPES[name]
        found = schema.field(column).type
        if not (pa.types.is_null(found) or is_right(found)):
            raise DataError(f"{path}: the column {column} must contain {words}, got {found}")


def _is_text(found: pa.DataType) -> bool:
    found = found.value_type if pa.types.is_dictionary(found) else found
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def _is_number(found: pa.DataType) -> bool:
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_boolean(found))


def _is_list_of(is_right: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def check(found: pa.DataType) -> bool:
        is_list = (
            pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
        )
        return is_list and is_right(found.value_type)

    return check


_TYPES: Mapping[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    **dict.fromkeys(("problem_id", "prompt", "completion", "finish_reason"), ("text", _is_text)),
    "reward": ("numbers", _is_number),
    "token_ids": ("lists of whole numbers", _is_list_of(pa.types.is_integer)),
    "logprobs": ("lists of numbers", _is_list_of(_is_number)),
    "own": ("lists of true and false", _is_list_of(_is_number)),
}


def _matched(
    where: str, row: Mapping[str, Any], by_id: Mapping[str, Problem], by_question: Mapping[str, Problem]
) -> Problem:
    problem_id, question = row.get("problem_id"), row.get("prompt")
    problem = by_id.get(problem_id) if problem_id is not None else by_question.get((question or "").strip())
    if problem is None:
        asked = repr(problem_id if problem_id is not None else _shortened(question or ""))
        close = difflib.get_close_matches(str(problem_id), list(by_id)[:10_000], n=1) if problem_id else []
        raise DataError(
            f"{where} answers {asked}, which is not among the {len(by_id)} training problems"
            + (f" (the nearest is {close[0]!r})" if close else "")
            + "; choose the dataset that the completions answer, or remove such rows"
        )
    if question is not None and question.strip() != problem.question.strip():
        raise DataError(
            f"{where} has the problem_id {problem.problem_id!r}, whose question is "
            f"{_shortened(problem.question)!r}, but the row has the question {_shortened(question)!r}; "
            "choose the dataset that the completions were recorded with"
        )
    return problem


def _completion(where: str, row: Mapping[str, Any], problem: Problem) -> StoredCompletion:
    text, reward = row["completion"], row.get("reward")
    if text is None:
        raise DataError(f"{where} has no completion; remove the row, or set its completion to an empty text")
    finish = row.get("finish_reason") or FinishReason.STOP.value
    if finish not in {reason.value for reason in FinishReason}:
        allowed = " or ".join(reason.value for reason in FinishReason)
        raise DataError(f"{where} has the finish_reason {finish!r}, expected {allowed}")
    if reward is not None and not np.isfinite(reward):
        raise DataError(f"{where} has the reward {reward}, expected a finite number")
    ids, logprobs, own = row.get("token_ids"), row.get("logprobs"), row.get("own")
    if ids is not None and None in ids:
        raise DataError(f"{where}: token_ids must be whole numbers, got null; correct the column token_ids")
    if own is not None and (ids is None or len(own) != len(ids) or not any(own)):
        raise DataError(
            f"{where}: the column `own` must have one value for each entry of token_ids, at least one of "
            "them true; correct it"
        )
    return StoredCompletion(
        where=where,
        problem=problem,
        text=text,
        finish_reason=FinishReason(finish),
        reward=None if reward is None else float(reward),
        token_ids=None if ids is None else np.asarray(ids, dtype=np.int64),
        logprobs=None if logprobs is None else _checked(where, np.asarray(logprobs, dtype=np.float32)),
        own=None if own is None else np.asarray(own, dtype=np.bool_),
    )


def _checked(where: str, logprobs: Logprobs) -> Logprobs:
    """Return the log-probabilities, with values above 0 (rounding errors) set to 0; NaN (unknown) is kept.

    Raises `DataError` for values above 0.001 and for minus infinity.
    """
    wrong = logprobs[logprobs > 1e-3]
    if len(wrong):
        raise DataError(
            f"{where} has the log-probability {wrong[0]:g}, but log-probabilities must be at most 0, in "
            "nats; correct the column logprobs"
        )
    if np.isneginf(logprobs).any():
        raise DataError(
            f"{where} has the log-probability -inf, but a sampled token must have a probability greater "
            "than 0; correct the column logprobs"
        )
    return np.minimum(logprobs, np.float32(0.0))


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
