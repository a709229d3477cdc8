r"""Verifiers: where the answer of a completion stands, and whether it equals the gold answer.

A verifier is one class: its settings are the section `grader` of a configuration, or of a benchmark. It says

- `extract`: which answer a text gives, or None where it gives none;
- `compare`: whether an answer equals the gold answer, and why;
- `of_problem`: whether a problem's metadata or verifier values change any of this;
- `write` and `restate`: how an answer stands in a completion, and the gold answer in another form. Together
  they say what a readable gold is: one for which its own answer in another form counts.

All of it runs in worker processes that are killed at a deadline (`pool`), so a verifier may be slow, may hang
and may crash. One that inherits from `PlacedVerifier` finds answers where its setting `answer` says, and may
`settle` in the caller what it can settle fast and safely; the verifiers below do. A class declared elsewhere
is known as soon as its module is imported, before the configuration is.
"""

from __future__ import annotations

import re
import sys
import traceback
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from atrium.base.errors import DataError
from atrium.base.section import Axis, NonNegative, Parallel, Positive, Text, Wait
from atrium.grading import equivalence
from atrium.grading.arithmetic import evaluate
from atrium.grading.equivalence import Finding
from atrium.grading.extraction import ANSWER, answer_after, last_box, last_number
from atrium.grading.normalization import MAX_ANSWER_CHARS, read
from atrium.grading.soundness import restated
from atrium.grading.structure import unlabelled
from atrium.grading.symbolic import numeric_value
from atrium.grading.values import Tolerance, Value, close

_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*(?=\{)|[{}$*]|\\[() ,;]")
_LEADING_LETTER = re.compile(r"\s*[(\[]?\s*([A-Za-z])\s*(?:[)\].:,]|\s|$)")
_ONLY_LETTERS = re.compile(r"(?:[\s,;()\[\].]|\b(?:and|or)\b|\b[A-Za-z]\b)+")
_LETTER = re.compile(r"\b[A-Za-z]\b")


class Verifier(Axis, axis=True):
    """How the answer of a completion is found and compared with the gold answer."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that worker processes import before the first answer, in no answer's time."""
    num_workers: Parallel = 2
    """Worker processes; they start only when an answer needs more than comparing text."""
    timeout_s: Wait = 5.0
    """Seconds after which a worker is killed and the verdict is that it timed out."""
    memory_limit_mb: Annotated[int, Field(ge=256, le=10**9)] = 1024
    """Address space of one worker, in megabytes; with math-verify loaded it takes about 100."""

    @abstractmethod
    def extract(self, text: str) -> str | None:
        """The answer in a completion, from which a thought has been taken off; None where there is none."""

    @abstractmethod
    def compare(self, gold: str, answer: str) -> Finding:
        """Whether an extracted answer equals the gold answer."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> Verifier:
        """The verifier of a problem, from its metadata and its values of `fields.verifier`; by default this.

        A value of `fields.verifier` is what the file holds, unchanged. Raises `DataError` for a value that it
        cannot use, which is raised before training.
        """
        del judged_by
        return self

    @abstractmethod
    def write(self, answer: str) -> str:
        """A completion that gives this answer, so that `extract` finds it."""

    def restate(self, gold: str) -> str:
        """The gold answer in another form that equals it; by default as it is."""
        return gold


def _check_place(place: str) -> str:
    """Pass a place on if it is one. Raises `ValueError` otherwise."""
    before, marker, after = place.partition(ANSWER)
    if place in _PLACES or (marker and before.strip() and ANSWER not in after):
        return place
    raise ValueError(f"{', '.join(_PLACES)}, or words that hold {ANSWER} once, such as 'Answer: {ANSWER}'")


_PLACES = ("box", "last_number")
Place = Annotated[Text, AfterValidator(_check_place)]


class PlacedVerifier(Verifier):
    r"""A verifier whose answers stand at a place that settings name, by default the last `\boxed{}`."""

    answer: Place = "box"
    r"""Where the answer stands: box (the last cluster of `\boxed{}`), last_number (as in Qwen2.5-Math's
    evaluation code and lm-eval's flexible-extract), or words that hold {answer}, such as DAPO's
    'Answer: {answer}' and GSM8K's '#### {answer}'. The last one counts, up to the end of its line."""

    def extract(self, text: str) -> str | None:
        """What stands there."""
        if self.answer == "box":
            return last_box(text)
        return last_number(text) if self.answer == "last_number" else answer_after(text, self.answer)

    def write(self, answer: str) -> str:
        """The answer at its place."""
        if self.answer == "box":
            return rf"\boxed{{{answer}}}"
        return f"It is {answer}" if self.answer == "last_number" else self.answer.replace(ANSWER, answer)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """As `compare`, for the caller's own process; None where only a worker process may go on."""
        del gold, answer
        return None


class ExpressionVerifier(PlacedVerifier):
    """A verifier that reads mathematical expressions."""

    def restate(self, gold: str) -> str:
        """An equal expression, see `soundness`; a number with a decimal more where only numbers are found."""
        if self.answer != "last_number":
            return restated(gold)
        return f"{gold}0" if "." in gold else f"{gold}.0"


class MathVerifier(ExpressionVerifier):
    """The answer against the gold answer, symbolically: `equivalence`."""

    kind: Literal["math"] = "math"
    """Which kind of grader this is."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """By text, words, rational numbers and lists of them."""
        return equivalence.settle(gold, answer)

    def compare(self, gold: str, answer: str) -> Finding:
        """By math-verify."""
        return equivalence.verify(gold, answer)


class ToleranceVerifier(ExpressionVerifier):
    """The answer against the gold answer, symbolically or as numbers that are close.

    Source: Qwen2.5-Math's evaluation code, whose tolerance is a relative 1e-4. Differs: there the gold answer
    divided or multiplied by 100 counts too; here percentages are read as for `math`. OlympiadBench's
    evaluation code has absolute tolerances instead, 1e-8 where a problem names none.
    """

    kind: Literal["math_tolerance"] = "math_tolerance"
    """Which kind of grader this is."""
    relative_tolerance: Annotated[NonNegative, Field(lt=1.0)] = 1e-4
    """The largest difference of two numbers, also within lists, relative to the larger one."""
    absolute_tolerance: Annotated[NonNegative, Field(le=1e9)] = 0.0
    """A difference of two numbers that is allowed however small they are."""
    tolerance_from: Text | None = None
    """The name in fields.verifier (or fields.metadata) of a problem's own absolute tolerance, such as error;
    null for none."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> ToleranceVerifier:
        """With the problem's own tolerance; of several, for several answers, the smallest.

        Raises `DataError` where it is no number.
        """
        own = judged_by.get(self.tolerance_from) if self.tolerance_from else None
        if own is None:
            return self
        try:
            tolerance = min(float(part) for part in str(own).split(","))
        except ValueError:
            tolerance = -1.0
        if not 0.0 <= tolerance <= 1e9:
            raise DataError(
                f"{self.tolerance_from}={own!r} of a problem is no tolerance; a number from 0 is due"
            )
        return self.model_copy(update={"absolute_tolerance": tolerance})

    @property
    def tolerance(self) -> Tolerance:
        """Both tolerances."""
        return Tolerance(relative=self.relative_tolerance, absolute=self.absolute_tolerance)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """As for `math`, but that numbers which differ by a little are equal."""
        return equivalence.settle(gold, answer, tolerance=self.tolerance)

    def compare(self, gold: str, answer: str) -> Finding:
        """By math-verify, and then as numbers."""
        finding = equivalence.verify(gold, answer)
        return finding if finding.is_equal else _as_numbers(gold, answer, self.tolerance, finding)


class ExactVerifier(PlacedVerifier):
    """The answer against the gold answer, as text but for its spacing."""

    kind: Literal["exact"] = "exact"
    """Which kind of grader this is."""

    def settle(self, gold: str, answer: str) -> Finding:
        """Equality of the two texts, but for space around them and runs of space within."""
        return Finding(gold.split() == answer.split(), "compared as text")

    compare = settle


class NumericVerifier(ExpressionVerifier):
    r"""The answer against the gold answer, both as numbers.

    Numbers may be written as `1/3`, `\frac{1}{3}`, `1.5\times 10^{-3}`, `1.5e-3`, `30\%`, or as any
    expression that has a value; a unit behind the number is ignored.
    """

    kind: Literal["numeric"] = "numeric"
    """Which kind of grader this is."""
    relative_tolerance: Annotated[Positive, Field(lt=1.0)] = 0.01
    """The largest difference, relative to the larger number."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Whether two numbers differ by at most the tolerance."""
        if len(gold) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
            return Finding(False, "too long for a number")
        wanted, given = _number(gold), _number(answer)
        return (
            None
            if wanted is None or given is None
            else _close(wanted, given, Tolerance(relative=self.relative_tolerance))
        )

    def compare(self, gold: str, answer: str) -> Finding:
        """The same for expressions that only math-verify can read."""
        tolerance = Tolerance(relative=self.relative_tolerance)
        return _as_numbers(gold, answer, tolerance, Finding(False, "not a number"))


class MultipleChoiceVerifier(PlacedVerifier):
    """The letters in the answer against those of the gold answer, several letters as a set."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    """Which kind of grader this is."""

    def settle(self, gold: str, answer: str) -> Finding:
        r"""Equality of the letters chosen: `C`, `(C)`, `\text{C. 12}`."""
        wanted, given = _letters(gold), _letters(answer)
        return Finding(wanted == given, "letters compared") if given else Finding(False, "no letter chosen")

    compare = settle

    def restate(self, gold: str) -> str:
        """The letters in brackets, set as text."""
        return rf"\text{{({', '.join(sorted(_letters(gold)))})}}"


def place_of(error: Exception, verifier: Verifier | None) -> str:
    """An error of a comparison in one line, with its place in the file of a verifier of one's own."""
    module = sys.modules.get(type(verifier).__module__)
    file = None if type(verifier).__module__.startswith("atrium.") else getattr(module, "__file__", None)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
    if not frames:
        return f"{type(error).__name__} in the comparison"
    return f"{file}, line {frames[-1].lineno}, in {frames[-1].name}: {type(error).__name__}: {error}"


def _as_numbers(gold: str, answer: str, tolerance: Tolerance, otherwise: Finding) -> Finding:
    """Compare two expressions by the numbers that math-verify reads: only for a worker process."""
    numbers = [numeric_value(text) for text in (gold, answer)]
    values = [None if n is None else Value(n, abs(n), True, frozenset()) for n in numbers]
    if values[0] is None or values[1] is None:
        return otherwise
    return _close(values[0], values[1], tolerance)


def _close(wanted: Value, given: Value, tolerance: Tolerance) -> Finding:
    return Finding(bool(close(wanted, given, tolerance)), f"numbers compared to {tolerance}")


def _number(text: str) -> Value | None:
    bare = text.strip().replace(",", "")
    try:
        number = float(bare)
    except ValueError:
        tokens = unlabelled(read(text).tokens)
        percent = tokens[-1:] == ("%",)
        value = evaluate(tokens[:-1] if percent else tokens)
        if value is None or value.names:
            return None
        return Value(value.number / 100, value.scale, True, value.names) if percent else value
    return Value(number, abs(number), True, frozenset())


def _letters(text: str) -> frozenset[str]:
    plain = _FONT.sub(" ", text)
    if _ONLY_LETTERS.fullmatch(plain):
        return frozenset(letter.upper() for letter in _LETTER.findall(plain))
    leading = _LEADING_LETTER.match(plain)
    return frozenset((leading[1].upper(),)) if leading else frozenset()
