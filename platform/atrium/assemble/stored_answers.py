"""Answers stored in files that other programs wrote.

Three layouts are supported: one completion per row, the sample files of lm-evaluation-harness, and the
details files of lighteval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from atrium.base.errors import DataError
from atrium.base.nested import mapping_at
from atrium.base.rows import read_rows
from atrium.data.fields import UnreadableValueError, answer_text
from atrium.grading.extraction import extract_answer

_FIELDS = {
    "gold": ("gold", "answer", "target", "gts", "expected_answer", "reference"),
    "text": ("text", "completion", "output", "response", "prediction", "model_output", "generated_text"),
}
_LABELS = ("is_correct", "correct", "expected", "score")
_COLUMNS = frozenset(
    (
        *(*_FIELDS["gold"], *_FIELDS["text"], *_LABELS, "problem_id", "id"),
        *("doc", "model_response", "metric"),
    )
)
_read_box = partial(extract_answer, thinking=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A stored completion with its reference answer and the stored verdict.

    `was_correct` is None if no verdict is stored. `other_golds` are further reference answers; an answer
    that matches any of them is correct too.
    """

    name: str
    gold: str
    text: str
    other_golds: tuple[str, ...] = ()
    was_correct: bool | None
    extracted: str | None = None
    judged_by: Mapping[str, Any] = field(default_factory=dict)


def answers_of_file(path: Path) -> list[StoredAnswer]:
    """Read the answers from a file in one of the supported layouts.

    Raises `DataError` if the file cannot be read, or if a row has no completion or no reference answer.
    """
    answers: list[StoredAnswer] = []
    seen: set[object] = set()
    for number, row in enumerate(read_rows(path, _COLUMNS), start=1):
        place = f"{path}, row {number}"
        if "resps" in row:
            key = repr(row.get("doc_id", number))
            # A task with several filters has one line per filter, all with the same completions.
            answers += [] if key in seen else _of_lm_eval(place, number, row)
            seen.add(key)
        elif isinstance(row.get("model_response"), Mapping):
            answers += _of_lighteval(place, number, row)
        else:
            answers.append(_of_row(place, number, row))
    if not answers:
        raise DataError(f"{path} contains no completions; write one row per completion")
    return answers


def _of_row(place: str, number: int, row: Mapping[str, Any]) -> StoredAnswer:
    found = {}
    for wanted, names in _FIELDS.items():
        name = next((name for name in names if row.get(name) is not None), None)
        if name is None:
            raise DataError(
                f"{place}: the row has no field for the {wanted}; expected one of {', '.join(names)}, "
                f"got {', '.join(map(str, row)) or 'no fields'}"
            )
        found[wanted] = row[name]
    if isinstance(found["text"], list | Mapping):
        raise DataError(f"{place}: the completion must be text; write one row per completion")
    label = next((row[name] for name in _LABELS if row.get(name) is not None), None)
    problem = row.get("problem_id", row.get("id", f"row {number}"))
    is_one = not isinstance(found["gold"], list | Mapping)
    gold, *others = [str(found["gold"])] if is_one else _references(place, found["gold"])
    return StoredAnswer(
        name=str(problem),
        gold=gold,
        other_golds=tuple(others),
        text=str(found["text"]),
        was_correct=_as_bool(label),
    )


def _of_lm_eval(place: str, number: int, row: Mapping[str, Any]) -> Iterator[StoredAnswer]:
    """Yield the answers in a row of lm-evaluation-harness.

    The field `resps` contains one list of completions per request.
    """
    resps = row["resps"] if isinstance(row["resps"], list) else []
    texts = [text for request in resps for text in (request if isinstance(request, list) else [request])]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: resps contains no completions as text; use the samples of a task that generates "
            "text (generate_until)"
        )
    doc = mapping_at(row, "doc")
    names = row.get("metrics")
    values = [row.get(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    label = next(
        (value for value in (*values, row.get("exact_match")) if isinstance(value, int | float)), None
    )
    name = doc.get("problem_id", doc.get("id", row.get("doc_id", number)))
    return _of_samples(place, str(name), row.get("target"), texts, label)


def _of_lighteval(place: str, number: int, row: Mapping[str, Any]) -> Iterator[StoredAnswer]:
    """Yield the answers in a row of lighteval, which are in its field `model_response`."""
    doc, texts, metric = mapping_at(row, "doc"), row["model_response"].get("text"), row.get("metric")
    given, choices = doc.get("gold_index"), doc.get("choices")
    places = given if isinstance(given, list) else [given]
    of = choices if isinstance(choices, list) else []
    gold = [of[at] for at in places if isinstance(at, int) and 0 <= at < len(of)]
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: model_response.text contains no completions; use the details file of a task that "
            "generates text"
        )
    # For several answers, only the metric avg@n is their mean; other metrics score the best answer.
    scores = metric.items() if isinstance(metric, Mapping) else ()
    values = [value for key, value in scores if len(texts) < 2 or str(key).startswith("avg@n")]
    label = next((value for value in values if isinstance(value, int | float)), None)
    name = number if doc.get("id") is None else doc["id"]
    return _of_samples(place, str(name)[:80], gold, texts, label)


def _of_samples(
    place: str, name: str, gold: object, texts: Sequence[str], label: float | None
) -> Iterator[StoredAnswer]:
    """Yield the answers to one problem; `label` is their mean score, or None if it is unknown.

    A mean of 0 or 1 is the verdict on every answer. Any other mean, or NaN, leaves the verdicts unknown.
    """
    reference, *others = _references(place, gold)
    was_correct = None if label is None or isnan(label) or 0 < label < 1 else label > 0
    for index, text in enumerate(texts):
        yield StoredAnswer(
            name=f"{name} #{index}",
            gold=reference,
            other_golds=tuple(others),
            text=text,
            was_correct=was_correct,
        )


def _references(place: str, value: object) -> list[str]:
    """Return the different reference answers in a field's value; raise `DataError` if there are none."""
    try:
        given = value if isinstance(value, list) and value else [value]
        return list(dict.fromkeys(answer_text(one, _read_box) for one in given))
    except UnreadableValueError as error:
        raise DataError(
            f"{place}: the reference answer cannot be read, since {error}; expected it in target "
            "(lm-eval), in doc.choices at doc.gold_index (lighteval), or in answer (one completion per row)"
        ) from error


def _as_bool(label: object) -> bool | None:
    if label is None or (isinstance(label, float) and isnan(label)):
        return None
    return label > 0 if isinstance(label, int | float) else str(label).lower() in ("true", "yes", "correct")
