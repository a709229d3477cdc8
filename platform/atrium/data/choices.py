"""Multiple choice: reading choices from any layout, showing them with letters, finding the correct letter.

Layouts: a list of texts (with or without their own letters), a mapping of letter to text, ARC's mapping of
`label` and `text`, a list of objects with a label and a text, one text such as `a ) 38 , b ) 27`, or several
columns with one choice each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase, digits
from typing import Any

from atrium.data.fields import UnreadableValueError, opened

COLUMNS = ("options", "choices", "Options", "Choices")
"""Columns that hold choices in published files."""
_COLUMN = re.compile(
    r"(|opt?|options?|choices?|ending|alternative|answer|sol|solution)[ _-]?([A-Za-z]|\d)", re.IGNORECASE
)
_LABEL = re.compile(r"\s*\(?\s*([A-Za-z])\s*[).:]\s*(?=\S)")
_INNER_LABEL = re.compile(r"(?:(?<=[\s,;])|\A)\(?([A-Za-z])\s?[).:]\s*")
_KEYS, _TEXTS = ("label", "key", "letter", "id"), ("text", "value", "content")
_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*[)\].:]?")


@dataclass(frozen=True, slots=True)
class Choices:
    """The texts of the choices in their order, and their labels in the file (A, B, ... by default)."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]

    def shuffled(self, question: str) -> Choices:
        """Return the same choices in an order determined by a hash of the question and of each text."""
        pairs = sorted(self.texts, key=lambda text: hashlib.sha256(f"{question}\n{text}".encode()).digest())
        return Choices(tuple(ascii_uppercase[: len(pairs)]), tuple(pairs))

    def shown(self) -> str:
        """Return one line per choice: `(A) 12`."""
        return "\n".join(
            f"({letter}) {text}" for letter, text in zip(ascii_uppercase, self.texts, strict=False)
        )

    def text_of(self, reference: object) -> str:
        """Return the text of the choice that a reference gives by its label, index from 0, or text.

        Raises `UnreadableValueError` if it matches none or several.
        """
        named = {self.texts.index(text) for text in self.texts if text == str(reference).strip()}
        label = _LETTER.fullmatch(str(reference).strip())
        wanted = label[1].upper() if label else str(reference).strip()
        named |= {index for index, own in enumerate(self.labels) if own.upper() == wanted}
        if isinstance(reference, int) and not isinstance(reference, bool) and "0" not in self.labels:
            is_labelled = any(own.isdecimal() for own in self.labels)
            named |= {reference} if 0 <= reference < len(self.texts) and not is_labelled else set()
        if len(named) != 1:
            what = "is none" if not named else "may be several"
            raise UnreadableValueError(
                f"the answer {str(reference)[:40]!r} {what} of the {len(self.texts)} choices"
            )
        return self.texts[named.pop()]

    def letter_of(self, text: str) -> str:
        """Return the letter that a choice is shown with."""
        return ascii_uppercase[self.texts.index(text)]


def choice_columns(names: Iterable[object]) -> tuple[str, ...]:
    """Return the columns that hold one choice each by their names: A, B, C, or option_a, or choice1."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if isinstance(name, str) and (match := _COLUMN.fullmatch(name)):
            found.setdefault(match[1], {})[match[2].upper()] = name
    for prefix, columns in found.items():
        labels = "".join(sorted(columns))
        # Columns a and b may be two numbers of a problem, and answer1 and answer2 two references.
        is_bare = not prefix or prefix.lower() in ("answer", "solution")
        if len(labels) > 1 + (not prefix) and (
            ascii_uppercase.startswith(labels) or (not is_bare and labels in digits)
        ):
            return tuple(columns[label] for label in labels)
    return ()


def labels_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the letters or numbers at the end of such column names; empty for other names."""
    found = [_COLUMN.fullmatch(name) for name in columns]
    return tuple(match[2] for match in found if match) if all(found) else ()


def choices_of(values: Sequence[Any], columns: Sequence[str] = ()) -> Choices:
    """Return the choices in a field's value, or in one value for each of these columns.

    Raises `UnreadableValueError` for fewer than two choices, more than 26, or two equal ones.
    """
    if len(values) > 1:
        labels, texts = list(labels_of(columns)), [_text(one) for one in values]
    else:
        labels, texts = _labelled(values[0])
    if not 2 <= len(texts) <= len(ascii_uppercase) or len(set(texts)) < len(texts):
        raise UnreadableValueError(f"expected 2 to 26 different choices, got {len(texts)}")
    own = labels if len(set(labels)) == len(texts) else ascii_uppercase[: len(texts)]
    return Choices(tuple(own), tuple(texts))


def _labelled(value: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - any value of a row
    """Return the labels, if any, and the texts of choices in one value."""
    value = opened(value) if isinstance(value, str) else value
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, Mapping):
        if all(isinstance(value.get(key), list) for key in ("label", "text")):
            return [str(label) for label in value["label"]], [_text(text) for text in value["text"]]
        given = {str(key): text for key, text in value.items() if text is not None}
        return list(given), [_text(text) for text in given.values()]
    if not isinstance(value, list):
        raise UnreadableValueError("no choices")
    if value and all(isinstance(one, Mapping) for one in value):
        labels = [str(next((one[key] for key in _KEYS if key in one), "")) for one in value]
        return labels, [_text(next((one[key] for key in _TEXTS if key in one), None)) for one in value]
    return [], _unlettered([_text(one) for one in value])


def _unlettered(texts: Sequence[str]) -> list[str]:
    """Return the texts without their own letters, if they begin with A, B, C, ... in this order."""
    found = [_LABEL.match(text) for text in texts]
    letters = "".join(match[1].upper() if match else "-" for match in found)
    if letters != ascii_uppercase[: len(texts)]:
        return list(texts)
    return [text[match.end() :].strip() for text, match in zip(texts, found, strict=True) if match]


def _split(text: str) -> tuple[list[str], list[str]]:
    """Split one text at its letters, in the order A, B, C, ..."""
    places: list[re.Match[str]] = []
    for match in _INNER_LABEL.finditer(text):
        if match[1].upper() == ascii_uppercase[len(places) : len(places) + 1]:
            places.append(match)
    ends = [*(match.start() for match in places[1:]), len(text)]
    return [], [text[match.end() : end].strip(" ,;\n") for match, end in zip(places, ends, strict=True)]


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise UnreadableValueError("a choice has no text")
    return str(value).strip()
