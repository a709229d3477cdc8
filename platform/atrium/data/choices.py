"""Multiple-choice questions: choices in any layout, their letters, and the letter of the correct choice.

Layouts: a list of texts (with or without letters in front), a mapping from letter to text, ARC's mapping with
the lists `label` and `text`, a list of objects with a label and a text, one text such as `a ) 38 , b ) 27`,
or several columns with one choice each.
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
"""Names of columns with choices in published files."""
_COLUMN = re.compile(
    r"(|opt?|options?|choices?|ending|alternative|answer|sol|solution)[ _-]?([A-Za-z]|\d)", re.IGNORECASE
)
_LABEL = re.compile(r"\s*\(?\s*([A-Za-z])\s*[).:]\s*(?=\S)")
_INNER_LABEL = re.compile(r"(?:(?<=[\s,;])|\A)\(?([A-Za-z])\s?[).:]\s*")
_KEYS, _TEXTS = ("label", "key", "letter", "id"), ("text", "value", "content")
_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*[)\].:]?")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of a question: their texts in order, and their labels in the file (default: A, B, ...)."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]

    def shuffled(self, question: str) -> Choices:
        """Return the choices ordered by a hash of the question and each text, with the labels A, B, ..."""
        pairs = sorted(self.texts, key=lambda text: hashlib.sha256(f"{question}\n{text}".encode()).digest())
        return Choices(tuple(ascii_uppercase[: len(pairs)]), tuple(pairs))

    def shown(self) -> str:
        """Return the choices as text with letters A, B, ..., one line each: `(A) 12`."""
        return "\n".join(
            f"({letter}) {text}" for letter, text in zip(ascii_uppercase, self.texts, strict=False)
        )

    def text_of(self, reference: object) -> str:
        """Return the text of the choice that a reference answer names: by label, by index from 0, or by text.

        Only an integer can be an index, and only if no label is a number. Raises `UnreadableValueError` if
        the reference matches no choice or several.
        """
        named = {self.texts.index(text) for text in self.texts if text == str(reference).strip()}
        label = _LETTER.fullmatch(str(reference).strip())
        wanted = label[1].upper() if label else str(reference).strip()
        named |= {index for index, own in enumerate(self.labels) if own.upper() == wanted}
        if isinstance(reference, int) and not isinstance(reference, bool) and "0" not in self.labels:
            is_labelled = any(own.isdecimal() for own in self.labels)
            named |= {reference} if 0 <= reference < len(self.texts) and not is_labelled else set()
        if len(named) != 1:
            what = "matches none" if not named else "matches several"
            raise UnreadableValueError(
                f"the answer {str(reference)[:40]!r} {what} of the {len(self.texts)} choices"
            )
        return self.texts[named.pop()]

    def letter_of(self, text: str) -> str:
        """Return the letter with which `shown` marks the choice `text`."""
        return ascii_uppercase[self.texts.index(text)]


def choice_columns(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names that look like columns with one choice each, in the order of their letters or digits.

    Examples of such names are A, B, C; option_a, option_b; and choice1, choice2. The result may be empty.
    """
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
    """Return the letters or digits at the end of the names of choice columns.

    The result is empty if any name does not have the form of a choice column.
    """
    found = [_COLUMN.fullmatch(name) for name in columns]
    return tuple(match[2] for match in found if match) if all(found) else ()


def choices_of(values: Sequence[Any], columns: Sequence[str] = ()) -> Choices:
    """Return the choices of a row. `values` is one value with all choices, or one value per choice.

    If there is one value per choice, `columns` may contain the names of their columns. The letters or digits
    at the end of these names then become the labels. Raises `UnreadableValueError` for fewer than 2 choices,
    more than 26, two equal ones, or a choice without text.
    """
    if len(values) > 1:
        labels, texts = list(labels_of(columns)), [_text(one) for one in values]
    else:
        labels, texts = _labelled(values[0])
    if not 2 <= len(texts) <= len(ascii_uppercase) or len(set(texts)) < len(texts):
        found = f"{len(texts)} texts, {len(set(texts))} of them different"
        raise UnreadableValueError(f"the choices must be 2 to 26 different texts, got {found}")
    own = labels if len(set(labels)) == len(texts) else ascii_uppercase[: len(texts)]
    return Choices(tuple(own), tuple(texts))


def _labelled(value: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - any value of a row
    """Return the labels and texts of the choices in one value.

    The labels are empty if the value gives none, or gives only the letters A, B, ... within its texts.
    """
    value = opened(value) if isinstance(value, str) else value
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, Mapping):
        if all(isinstance(value.get(key), list) for key in ("label", "text")):
            return [str(label) for label in value["label"]], [_text(text) for text in value["text"]]
        given = {str(key): text for key, text in value.items() if text is not None}
        return list(given), [_text(text) for text in given.values()]
    if not isinstance(value, list):
        raise UnreadableValueError("the choices are missing")
    if value and all(isinstance(one, Mapping) for one in value):
        labels = [str(next((one[key] for key in _KEYS if key in one), "")) for one in value]
        return labels, [_text(next((one[key] for key in _TEXTS if key in one), None)) for one in value]
    return [], _unlettered([_text(one) for one in value])


def _unlettered(texts: Sequence[str]) -> list[str]:
    """Return the texts without their leading letters A, B, C, ...

    If the texts do not begin with these letters in order, they are returned unchanged.
    """
    found = [_LABEL.match(text) for text in texts]
    letters = "".join(match[1].upper() if match else "-" for match in found)
    if letters != ascii_uppercase[: len(texts)]:
        return list(texts)
    return [text[match.end() :].strip() for text, match in zip(texts, found, strict=True) if match]


def _split(text: str) -> tuple[list[str], list[str]]:
    """Return an empty list of labels, and the texts of the choices in text such as `a ) 38 , b ) 27`.

    The labels in such text are A, B, ... in order, which are also the default labels.
    """
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
