r"""Verifiers, which extract the answer of a completion and compare it with the reference answer.

A verifier is one class: its settings are the section `grader` of a configuration, or of a benchmark. Its
methods return:

- `extract`: the answer in a text, or None if there is none;
- `compare`: whether an answer equals the reference answer, and the reason;
- `of_problem`: the verifier adapted to a problem's metadata or verifier values;
- `write` and `restate`: a completion that states an answer, and the reference answer in another notation.
  Together they test whether a reference answer can be graded: its restatement must count as correct.

Extraction and comparison run in worker processes that are killed at a deadline (`pool`), so a verifier may be
slow, hang or crash. A subclass of `PlacedVerifier` finds answers according to its setting `answer` in the
calling process, and its method `settle` may decide fast and safe cases there. Modules with further verifiers
must be imported before the configuration's classes.
"""

from __future__ import annotations

import math
import re
import sys
import traceback
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from atrium.base.errors import DataError, GraderError
from atrium.base.section import Choice, NonNegative, Parallel, Positive, Text, Wait
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


class Verifier(Choice, axis=True):
    """A verifier, which extracts the answer of a completion and compares it with the reference answer."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that worker processes import before the first answer, outside its time limit."""
    num_workers: Parallel = 2
    """Number of worker processes; they start only when an answer needs more than a comparison of text."""
    timeout_s: Wait = 5.0
    """Timeout of one comparison in seconds; then the worker is killed and the verdict is `timed_out`."""
    memory_limit_mb: Annotated[int, Field(ge=256, le=10**9)] = 1024
    """Maximum address space of one worker in MiB; math-verify takes about 210."""

    @abstractmethod
    def extract(self, text: str) -> str | None:
        """Return the answer in `text`, a completion without its reasoning, or None if there is no answer."""

    @abstractmethod
    def compare(self, gold: str, answer: str) -> Finding:
        """Return whether an extracted answer equals the reference answer `gold`, and the reason."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> Verifier:
        """Return the verifier adapted to a problem; by default this verifier.

        `judged_by` contains the problem's metadata and its `fields.verifier` values, unchanged from the
        dataset's file. Raises `DataError` for a value that the verifier cannot use; the error ends the run
        before training.
        """
        return self

    @abstractmethod
    def write(self, answer: str) -> str:
        """Return a completion in which `extract` finds this answer."""

    def restate(self, gold: str) -> str:
        """Return the reference answer in an equivalent notation; by default, return it unchanged."""
        return gold


def _check_place(place: str) -> str:
    """Return `place`. Raises `ValueError` if the place is invalid.

    A valid place is in `_PLACES`, or contains {answer} exactly once, after other text.
    """
    before, marker, after = place.partition(ANSWER)
    if place in _PLACES or (marker and before.strip() and ANSWER not in after):
        return place
    raise ValueError(
        f"the place of an answer must be one of {', '.join(_PLACES)}, or text that contains {ANSWER} "
        f"once, after at least one word, such as 'Answer: {ANSWER}', got {place}"
    )


_PLACES = ("box", "last_number")
Place = Annotated[Text, AfterValidator(_check_place)]


class PlacedVerifier(Verifier):
    r"""A verifier with a setting for the place of answers, by default the last `\boxed{}`."""

    answer: Place = "box"
    r"""Place of the answer: box (the last cluster of `\boxed{}`), last_number (as in Qwen2.5-Math's
    evaluation code and lm-eval's flexible-extract), or words that contain {answer}, such as DAPO's 'Answer:
    {answer}' and GSM8K's '#### {answer}'. The last match counts, up to the end of its line."""

    def extract(self, text: str) -> str | None:
        """Return the answer at the place that `answer` sets, or None if there is no answer."""
        if self.answer == "box":
            return last_box(text)
        return last_number(text) if self.answer == "last_number" else answer_after(text, self.answer)

    def write(self, answer: str) -> str:
        """Return a completion with this answer at the place that `answer` sets."""
        if self.answer == "box":
            return rf"\boxed{{{answer}}}"
        return f"It is {answer}" if self.answer == "last_number" else self.answer.replace(ANSWER, answer)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Compare an answer with `gold` in the calling process.

        Returns None if a worker process has to decide.
        """
        return None


class ExpressionVerifier(PlacedVerifier):
    """A verifier of answers that are mathematical expressions."""

    def restate(self, gold: str) -> str:
        """Return an equal expression in another notation (see `soundness`).

        With `answer=last_number`, the reference answer only gets another decimal place: `12` becomes `12.0`.
        """
        if self.answer != "last_number":
            return restated(gold)
        return f"{gold}0" if "." in gold else f"{gold}.0"


class MathVerifier(ExpressionVerifier):
    """A verifier that compares answers symbolically (see `equivalence`)."""

    kind: Literal["math"] = "math"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide cheap cases, such as equal texts, words, rational numbers, and lists of these."""
        return equivalence.settle(gold, answer)

    def compare(self, gold: str, answer: str) -> Finding:
        """Compare two expressions symbolically, without a time limit; only worker processes call this."""
        return equivalence.verify(gold, answer)


class ToleranceVerifier(ExpressionVerifier):
    """A verifier that compares answers symbolically, or as numbers within a tolerance.

    Source: Qwen2.5-Math's evaluation code, with a relative tolerance of 1e-4. That code also accepts the
    reference answer divided or multiplied by 100, whereas this class treats percentages as `math` does.
    OlympiadBench's evaluation code has absolute tolerances instead, by default 1e-8.
    """

    kind: Literal["math_tolerance"] = "math_tolerance"
    """Kind of grader."""
    relative_tolerance: Annotated[NonNegative, Field(lt=1.0)] = 1e-4
    """Maximum difference of two numbers, also within lists, relative to the larger one."""
    absolute_tolerance: Annotated[NonNegative, Field(le=1e9)] = 0.0
    """Maximum difference of two numbers that is accepted regardless of their size."""
    tolerance_from: Text | None = None
    """Name in fields.verifier (or fields.metadata) of a problem's own absolute tolerance, such as error; null
    for none."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> ToleranceVerifier:
        """Return the verifier with the problem's own absolute tolerance, or this one if there is none.

        The setting `tolerance_from` names the value in `judged_by` that contains the tolerance. If the
        problem has several tolerances, separated by commas, the smallest one applies to all answers. Raises
        `DataError` if a tolerance is not a number, or if the smallest one is not between 0 and 1e9.
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
                f"a problem's field '{self.tolerance_from}' must be a number between 0 and 1e9, or several "
                f"such numbers separated by commas, got {own!r}"
            )
        return self.model_copy(update={"absolute_tolerance": tolerance})

    @property
    def tolerance(self) -> Tolerance:
        """The relative and absolute tolerance."""
        return Tolerance(relative=self.relative_tolerance, absolute=self.absolute_tolerance)

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide cheap cases as `MathVerifier` does, except that numbers within the tolerance are equal."""
        return equivalence.settle(gold, answer, tolerance=self.tolerance)

    def compare(self, gold: str, answer: str) -> Finding:
        """Compare two expressions as `MathVerifier` does, and if that finds them unequal, also as numbers."""
        finding = equivalence.verify(gold, answer)
        return finding if finding.is_equal else _as_numbers(gold, answer, self.tolerance, finding)


class ExactVerifier(PlacedVerifier):
    """A verifier that compares answers as text, and ignores the amount of white space."""

    kind: Literal["exact"] = "exact"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding:
        """Compare the two texts; leading, trailing and repeated white space is ignored."""
        return Finding(gold.split() == answer.split(), "compared as text")

    compare = settle


class NumericVerifier(ExpressionVerifier):
    r"""A verifier that compares answers as numbers, within a relative tolerance.

    Numbers may be written as `1/3`, `\frac{1}{3}`, `1.5\times 10^{-3}`, `1.5e-3`, `1,500`, `30\%`, or as any
    expression that has a value; a unit after the number is ignored. Infinity equals only itself.
    """

    kind: Literal["numeric"] = "numeric"
    """Kind of grader."""
    relative_tolerance: Annotated[Positive, Field(lt=1.0)] = 0.01
    """Maximum difference, relative to the larger number."""

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide whether two numbers differ by at most the tolerance.

        Returns None if the value of either cannot be computed without math-verify.
        """
        if len(gold) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
            return Finding(False, "too long for a number")
        if gold.split() == answer.split() and any(map(str.isdigit, gold)):
            return Finding(True, "the same text")
        wanted, given = _number(gold), _number(answer)
        if wanted is None or given is None:
            return None
        if wanted.number == given.number and all("inf" in text.lower() for text in (gold, answer)):
            return Finding(True, "both infinite")
        return _close(wanted, given, Tolerance(relative=self.relative_tolerance))

    def compare(self, gold: str, answer: str) -> Finding:
        """Compare two expressions by the values that math-verify finds for them."""
        tolerance = Tolerance(relative=self.relative_tolerance)
        return _as_numbers(gold, answer, tolerance, Finding(False, "not a number"))


class MultipleChoiceVerifier(PlacedVerifier):
    """A verifier that compares the chosen letters; several letters are compared as a set."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    """Kind of grader."""

    def settle(self, gold: str, answer: str) -> Finding:
        r"""Compare the chosen letters, written for example as `C`, `(C)` or `\text{C. 12}`."""
        wanted, given = _letters(gold), _letters(answer)
        return Finding(wanted == given, "letters compared") if given else Finding(False, "no letter chosen")

    compare = settle

    def restate(self, gold: str) -> str:
        """Return the letters of the reference answer in brackets, set as text."""
        return rf"\text{{({', '.join(sorted(_letters(gold)))})}}"


def extracted(verifier: Verifier, text: str) -> str | None:
    """Return the answer that a verifier extracts. Raises `GraderError` if it is neither text nor None."""
    answer: object = verifier.extract(text)
    if answer is None or isinstance(answer, str):
        return answer
    raise GraderError(
        f"{type(verifier).__name__}.extract must return text or None, got {answer!r}; correct the grader"
    )


def place_of(error: Exception, verifier: Verifier | None) -> str:
    """Describe in one line an error that was raised while answers were extracted or compared.

    If a user-defined verifier raised the error, the line names the file, the line and the function.
    """
    module = sys.modules.get(type(verifier).__module__)
    file = None if type(verifier).__module__.startswith("atrium.") else getattr(module, "__file__", None)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
    if not frames:
        return f"{type(error).__name__} in the comparison"
    return f"{file}, line {frames[-1].lineno}, in {frames[-1].name}: {type(error).__name__}: {error}"


def _as_numbers(gold: str, answer: str, tolerance: Tolerance, otherwise: Finding) -> Finding:
    """Compare two expressions by the values that math-verify finds for them. Only workers call this.

    Returns `otherwise` if either has no value.
    """
    numbers = [numeric_value(text) for text in (gold, answer)]
    values = [None if n is None else Value(n, abs(n), True, frozenset()) for n in numbers]
    if values[0] is None or values[1] is None:
        return otherwise
    return _close(values[0], values[1], tolerance)


def _close(wanted: Value, given: Value, tolerance: Tolerance) -> Finding:
    return Finding(bool(close(wanted, given, tolerance)), f"numbers compared to {tolerance}")


def _number(text: str) -> Value | None:
    bare = text.strip().replace(r"\infty", "inf")
    try:
        number = float(bare)
    except ValueError:
        tokens = unlabelled(read(text).tokens)
        percent = tokens[-1:] == ("%",)
        value = evaluate(tokens[:-1] if percent else tokens)
        if value is None or value.names:
            return None
        return Value(value.number / 100, value.scale, True, value.names) if percent else value
    # Python also reads `1_000`, which is no number in an answer.
    return Value(math.nan if "_" in bare else number, abs(number), True, frozenset())


def _letters(text: str) -> frozenset[str]:
    plain = _FONT.sub(" ", text)
    if _ONLY_LETTERS.fullmatch(plain):
        return frozenset(letter.upper() for letter in _LETTER.findall(plain))
    leading = _LEADING_LETTER.match(plain)
    return frozenset((leading[1].upper(),)) if leading else frozenset()
