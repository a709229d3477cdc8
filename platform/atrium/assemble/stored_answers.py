"""Stored answers in other programs' files: one completion per row, lm-eval samples, lighteval details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from atrium.base.errors import DataError
from atrium.base.rows import READERS, read_rows
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
        *("doc", "model_response", "metric", "predictions", "metrics", "example"),
    )
)
_read_box = partial(extract_answer, thinking=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A completion, the reference answer, and the stored verdict, or None if there is none.

    With several references any may match; `other_golds` are those after the first.
    """

    name: str
    gold: str
    text: str
    other_golds: tuple[str, ...] = ()
    was_correct: bool | None
    extracted: str | None = None
    judged_by: Mapping[str, Any] = field(default_factory=dict)


def is_answer_file(path: Path) -> bool:
    """Return whether a path is a file of answers, by its suffix."""
    return path.suffix.lower() in READERS


def answers_of_file(path: Path) -> list[StoredAnswer]:
    """Read the answers of a file in any of the layouts above.

    Raises `DataError` if the file cannot be read or a row has no text or reference.
    """
    answers: list[StoredAnswer] = []
    seen: set[object] = set()
    for number, row in enumerate(read_rows(path, _COLUMNS), start=1):
        place = f"{path}, row {number}"
        if "resps" in row:
            key = row.get("doc_id", number)
            # A task with several filters has a line for each of them, with the same completions.
            answers += [] if key in seen else _of_lm_eval(place, number, row)
            seen.add(key)
        elif isinstance(row.get("model_response"), Mapping) or "predictions" in row:
            answers += _of_lighteval(place, number, row)
        else:
            answers.append(_of_row(place, number, row))
    if not answers:
        raise DataError(f"{path} contains no completions; give it one row per completion")
    return answers


def _of_row(place: str, number: int, row: Mapping[str, Any]) -> StoredAnswer:
    found = {}
    for wanted, names in _FIELDS.items():
        name = next((name for name in names if row.get(name) is not None), None)
        if name is None:
            raise DataError(
                f"{place}: no field for the {wanted}; expected one of {', '.join(names)}, but it has "
                f"{', '.join(map(str, row)) or 'none'}"
            )
        found[wanted] = row[name]
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
    """Yield a problem of lm-evaluation-harness, whose `resps` hold a list of completions per request."""
    texts = [
        text for request in row["resps"] for text in (request if isinstance(request, list) else [request])
    ]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: resps contain no texts, as for tasks that compare probabilities of choices; only "
            "completions can be graded again, so use samples of a task that generates text "
            "(generate_until)"
        )
    doc = row["doc"] if isinstance(row.get("doc"), Mapping) else {}
    names = row.get("metrics")
    values = [row.get(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    label = next(
        (value for value in (*values, row.get("exact_match")) if isinstance(value, int | float)), None
    )
    name = doc.get("problem_id", doc.get("id", row.get("doc_id", number)))
    return _of_samples(place, str(name), row.get("target"), texts, label)


def _of_lighteval(place: str, number: int, row: Mapping[str, Any]) -> Iterator[StoredAnswer]:
    """Yield a problem of lighteval, with `doc` and `model_response` (older releases: `predictions`)."""
    if isinstance(row.get("model_response"), Mapping) and isinstance(row.get("doc"), Mapping):
        doc, texts = row["doc"], row["model_response"].get("text")
        given, choices = doc.get("gold_index"), doc.get("choices")
        places = given if isinstance(given, list) else [given]
        of = choices if isinstance(choices, list) else []
        gold: object = [of[at] for at in places if isinstance(at, int) and 0 <= at < len(of)]
        name, metric = doc.get("id"), row.get("metric")
    else:
        gold, texts, name, metric = (
            row.get("gold"),
            row["predictions"],
            row.get("example"),
            row.get("metrics"),
        )
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: no texts in model_response.text or predictions, as for tasks that compare "
            "probabilities of choices; only completions can be graded again, so use details of a "
            "generative task"
        )
    # Of several answers, lighteval's other metrics than avg@n give the best one's score.
    scores = metric.items() if isinstance(metric, Mapping) else ()
    values = [value for key, value in scores if len(texts) < 2 or str(key).startswith("avg@n")]
    label = next((value for value in values if isinstance(value, int | float)), None)
    return _of_samples(place, str(number if name is None else name)[:80], gold, texts, label)


def _of_samples(
    place: str, name: str, gold: object, texts: Sequence[str], label: float | None
) -> Iterator[StoredAnswer]:
    """Yield the samples of one problem; a mean over several gives each one's verdict if it is 0 or 1."""
    reference, *others = _references(place, gold)
    was_correct = None if label is None or 0 < label < 1 else label > 0
    for index, text in enumerate(texts):
        yield StoredAnswer(
            name=f"{name} #{index}",
            gold=reference,
            other_golds=tuple(others),
            text=text,
            was_correct=was_correct,
        )


def _references(place: str, value: object) -> list[str]:
    """Return the different reference answers in a field's value, at least one."""
    try:
        given = value if isinstance(value, list) and value else [value]
        return list(dict.fromkeys(answer_text(one, _read_box) for one in given))
    except UnreadableValueError as error:
        raise DataError(
            f"{place}: the reference cannot be read: {error}; it must be in target (lm-eval), in "
            "doc.choices at doc.gold_index or gold (lighteval), or in answer (one completion per row)"
        ) from error


def _as_bool(label: object) -> bool | None:
    if label is None:
        return None
    return label > 0 if isinstance(label, int | float) else str(label).lower() in ("true", "yes", "correct")
