r"""Verifiers: extract the answer of a completion, and compare it with the reference answer.

A verifier is one class: its settings are the section `grader` of a configuration, or of a benchmark. Its
methods:

- `extract`: the answer in a text, or None if there is none;
- `compare`: whether an answer equals the reference answer, and the reason;
- `of_problem`: the verifier adapted to a problem's metadata or verifier values;
- `write` and `restate`: a completion that states an answer, and the reference answer in another form.
  Together they define a gradable reference answer: one for which its own answer in another form counts.

All methods run in worker processes that are killed at a deadline (`pool`), so a verifier may be slow, hang or
crash. A subclass of `PlacedVerifier` finds answers according to its setting `answer`, and may `settle` fast
and safe cases in the caller; the verifiers below do. A class declared elsewhere is available once its module
is imported, which must happen before the configuration is.
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
    """Extracts the answer of a completion and compares it with the reference answer."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that worker processes import before the first answer, outside its time limit."""
    num_workers: Parallel = 2
    """Number of worker processes; they start only when an answer needs more than a comparison of text."""
    timeout_s: Wait = 5.0
    """Timeout in seconds, after which a worker is killed and the verdict is that it timed out."""
    memory_limit_mb: Annotated[int, Field(ge=256, le=10**9)] = 1024
    """Maximum address space of one worker in megabytes; math-verify takes about 100."""

    @abstractmethod
    def extract(self, text: str) -> str | None:
        """Return the answer in a completion without its reasoning; None if there is none."""

    @abstractmethod
    def compare(self, gold: str, answer: str) -> Finding:
        """Return whether an extracted answer equals the reference answer."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> Verifier:
        """Return the verifier for a problem's metadata and `fields.verifier` values; by default this one.

        Values of `fields.verifier` are passed as the file contains them. Raises `DataError` for a value that
        it cannot use; the error ends the run before training.
        """
        del judged_by
        return self

    @abstractmethod
    def write(self, answer: str) -> str:
        """Return a completion that gives this answer, so that `extract` finds it."""

    def restate(self, gold: str) -> str:
        """Return the reference answer in another form that equals it; by default unchanged."""
        return gold


def _check_place(place: str) -> str:
    """Return a valid place unchanged. Raises `ValueError` otherwise."""
    before, marker, after = place.partition(ANSWER)
    if place in _PLACES or (marker and before.strip() and ANSWER not in after):
        return place
    raise ValueError(f"{', '.join(_PLACES)}, or words that contain {ANSWER} once, such as 'Answer: {ANSWER}'")


_PLACES = ("box", "last_number")
Place = Annotated[Text, AfterValidator(_check_place)]


class PlacedVerifier(Verifier):
    r"""A verifier with a setting for the place of answers, by default the last `\boxed{}`."""

    answer: Place = "box"
    r"""Place of the answer: box (the last cluster of `\boxed{}`), last_number (as in Qwen2.5-Math's
    evaluation code and lm-eval's flexible-extract), or words that contain {answer}, such as DAPO's 'Answer:
    {answer}' and GSM8K's '#### {answer}'. The last one counts, up to the end of its line."""

    def extract(self, text: str) -> str | None:
        """Return the text at that place."""
        if self.answer == "box":
            return last_box(text)
        return last_number(text) if self.answer == "last_number" else answer_after(text, self.answer)

    def write(self, answer: str) -> str:
        """Return the answer at its place."""
        if self.answer == "box":
            return rf"\boxed{{{answer}}}"
        return f"It is {answer}" if self.answer == "last_number" else self.answer.replace(ANSWER, answer)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Compare in the caller's own process; None if only a worker process can decide."""
        del gold, answer
        return None


class ExpressionVerifier(PlacedVerifier):
    """A verifier that reads mathematical expressions."""

    def restate(self, gold: str) -> str:
        """Return an equal expression, see `soundness`.

        A number gets another decimal if only numbers are found.
        """
        if self.answer != "last_number":
            return restated(gold)
        return f"{gold}0" if "." in gold else f"{gold}.0"


class MathVerifier(ExpressionVerifier):
    """Compares the answer with the reference answer symbolically: `equivalence`."""

    kind: Literal["math"] = "math"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide by text, words, rational numbers and lists of them."""
        return equivalence.settle(gold, answer)

    def compare(self, gold: str, answer: str) -> Finding:
        """Compare with math-verify."""
        return equivalence.verify(gold, answer)


class ToleranceVerifier(ExpressionVerifier):
    """Compares the answer with the reference answer symbolically, or as numbers within a tolerance.

    Source: Qwen2.5-Math's evaluation code, whose tolerance is a relative 1e-4. Differs: there the reference
    answer divided or multiplied by 100 counts too; here percentages are read as for `math`. OlympiadBench's
    evaluation code has absolute tolerances instead, 1e-8 if a problem names none.
    """

    kind: Literal["math_tolerance"] = "math_tolerance"
    """Kind of grader."""
    relative_tolerance: Annotated[NonNegative, Field(lt=1.0)] = 1e-4
    """Maximum difference of two numbers, also within lists, relative to the larger one."""
    absolute_tolerance: Annotated[NonNegative, Field(le=1e9)] = 0.0
    """Difference of two numbers that is accepted regardless of their size."""
    tolerance_from: Text | None = None
    """Name in fields.verifier (or fields.metadata) of a problem's own absolute tolerance, such as error; null
    for none."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> ToleranceVerifier:
        """Return the verifier with the problem's own tolerance.

        Of several, for several answers, the smallest.

        Raises `DataError` if it is not a number.
        """
        own = judged_by.get(self.tolerance_from) if self.tolerance_from else None
        if own is None:
            return self
        try:
            tolerance = min(float(part) for part in str(own).split(","))
        except ValueError:
            tolerance = -1.0
        if not 0.0 <= tolerance <= 1e9:
            raise DataError(f"{self.tolerance_from}={own!r} of a problem must be a number of at least 0")
        return self.model_copy(update={"absolute_tolerance": tolerance})

    @property
    def tolerance(self) -> Tolerance:
        """The relative and absolute tolerance."""
        return Tolerance(relative=self.relative_tolerance, absolute=self.absolute_tolerance)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide as `math` does, but numbers within the tolerance are equal."""
        return equivalence.settle(gold, answer, tolerance=self.tolerance)

    def compare(self, gold: str, answer: str) -> Finding:
        """Compare with math-verify, and then as numbers."""
        finding = equivalence.verify(gold, answer)
        return finding if finding.is_equal else _as_numbers(gold, answer, self.tolerance, finding)


class ExactVerifier(PlacedVerifier):
    """Compares the answer with the reference answer as text, ignoring white space."""

    kind: Literal["exact"] = "exact"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding:
        """Compare the two texts, ignoring white space around them and runs of white space within."""
        return Finding(gold.split() == answer.split(), "compared as text")

    compare = settle


class NumericVerifier(ExpressionVerifier):
    r"""Compares the answer with the reference answer as numbers.

    Numbers may be written as `1/3`, `\frac{1}{3}`, `1.5\times 10^{-3}`, `1.5e-3`, `30\%`, or as any
    expression that has a value; a unit after the number is ignored.
    """

    kind: Literal["numeric"] = "numeric"
    """Kind of grader."""
    relative_tolerance: Annotated[Positive, Field(lt=1.0)] = 0.01
    """Maximum difference, relative to the larger number."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide whether two numbers differ by at most the tolerance."""
        if len(gold) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
            return Finding(False, "too long for a number")
        wanted, given = _number(gold), _number(answer)
        return (
            None
            if wanted is None or given is None
            else _close(wanted, given, Tolerance(relative=self.relative_tolerance))
        )

    def compare(self, gold: str, answer: str) -> Finding:
        """Do the same for expressions that only math-verify can read."""
        tolerance = Tolerance(relative=self.relative_tolerance)
        return _as_numbers(gold, answer, tolerance, Finding(False, "not a number"))


class MultipleChoiceVerifier(PlacedVerifier):
    """Compares the letters in the answer with those of the reference answer, several letters as a set."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding:
        r"""Compare the chosen letters: `C`, `(C)`, `\text{C. 12}`."""
        wanted, given = _letters(gold), _letters(answer)
        return Finding(wanted == given, "letters compared") if given else Finding(False, "no letter chosen")

    compare = settle

    def restate(self, gold: str) -> str:
        """Return the letters in brackets, set as text."""
        return rf"\text{{({', '.join(sorted(_letters(gold)))})}}"


def place_of(error: Exception, verifier: Verifier | None) -> str:
    """Describe an error of a comparison in one line, with its position in the file of a user's verifier."""
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
