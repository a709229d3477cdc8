r"""Compare graders on labeled cases: agreement, false positives, false negatives, and every disagreement.

Graders: Atrium's `math` and `math_tolerance`; math-verify on the whole completion (`raw`), and with both
answers in a box and without fallback (`boxed`); and the rule of Qwen2.5-Math's evaluation, implemented from
its description. This rule takes the last box, else the words after "answer is", else the last number.
Answers are equal if their texts are equal, if their numbers agree within a relative error of 1e-4 (the
reference may also be divided or multiplied by 100), if all elements are equal, or if SymPy finds them equal.

Cases: `tests`, those of Atrium's own tests; `published`, the file grading_cases.jsonl in the folder
ATRIUM_SHARED_BENCHMARKS; `given`, a JSONL file with the fields `gold`, `prediction` (or answer, completion)
and `expected` (or label). Disagreements on `tests` are not printed, only written to the file of --out.

    python benchmarks/graders.py [--cases FILE.jsonl] [--only tests published given] [--out FILE.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from atrium.grading.extraction import last_box
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier

ROOT = Path(__file__).resolve().parents[1]
SHARED = os.environ.get("ATRIUM_SHARED_BENCHMARKS", "../shared/benchmarks")
LIMIT_S = 10
SETS = ["tests", "published", "given"]
CASE_FIELDS = {
    "gold": ("gold", "reference", "target"),
    "prediction": ("prediction", "answer", "completion", "response", "text"),
    "label": ("expected", "label", "is_correct", "correct"),
}
"""Accepted field names of a file of `--cases`; the first name that a row contains is used."""
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True)
class Case:
    """A reference answer, a completion or bare answer, and whether the answer is correct."""

    name: str
    gold: str
    prediction: str
    expected: bool
    judgement: str = ""

    @property
    def completion(self) -> str:
        """The prediction, put into a box if it has none."""
        return self.prediction if r"\boxed" in self.prediction else rf"\boxed{{{self.prediction}}}"


Judge = Callable[[str, str], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=Path, help="JSONL file with the fields gold, prediction and expected")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS, help="sets of cases (default: all)")
    parser.add_argument("--out", type=Path, help="JSONL file to write every disagreement to")
    arguments = parser.parse_args()
    sets = {
        "tests": own_cases,
        "published": lambda: published_cases(Path(SHARED) / "grading_cases.jsonl"),
        "given": lambda: read_cases(arguments.cases) if arguments.cases else iter(()),
    }
    told: list[dict[str, object]] = []
    for name in arguments.only:
        cases = list(sets[name]())
        found = compare(name, cases) if cases else []
        for line in found if name != "tests" else ():
            print(json.dumps(line, ensure_ascii=False))
        told += found
    if arguments.out is not None:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")


def compare(name: str, cases: list[Case]) -> list[dict[str, object]]:
    """Print a row per grader, and return the cases in which a grader disagrees with the label."""
    said = {kind: atrium(kind, cases) for kind in ("math", "math_tolerance")}
    for peer, judge in PEERS.items():
        said[peer] = [limited(judge, case.completion, case.gold) for case in cases]
    print(f"\n{name}: {len(cases)} cases, {sum(case.expected for case in cases)} of them right")
    print(f"{'grader':<20}{'agree':>8}{'false +':>9}{'false -':>9}")
    for grader, verdicts in said.items():
        pairs = [(verdict, case.expected) for verdict, case in zip(verdicts, cases, strict=True)]
        num_positive, num_negative = pairs.count((True, False)), pairs.count((False, True))
        agree = 1 - (num_positive + num_negative) / len(cases)
        print(f"{grader:<20}{agree:>8.1%}{num_positive:>9}{num_negative:>9}")
    disagreements = []
    for index, case in enumerate(cases):
        wrong = [grader for grader, verdicts in said.items() if verdicts[index] != case.expected]
        if wrong:
            line = {"case": case.name, "gold": case.gold, "prediction": case.prediction}
            line |= {"expected": case.expected, "otherwise": wrong, "judgement": case.judgement}
            disagreements.append(line)
    return disagreements


def own_cases() -> Iterator[Case]:
    """Return the labeled answers of Atrium's tests."""
    sys.path.insert(0, str(ROOT))
    from tests.grading import test_equivalence, test_numerals, test_units

    for gold, answer, is_equal in test_equivalence.SETTLED:
        yield Case("settled", gold, answer, is_equal)
    for gold, completion in test_equivalence.HACKS:
        yield Case("hedge", gold, completion, expected=False)
    for unit in test_units.UNITS:
        yield Case("unit", "1.6", "1.6" + unit, expected=True)
    for words in test_units.CHANGES:
        yield Case("words", "5", rf"5\text{{ {words}}}", expected=False)
    for number, others in test_numerals.NUMBERS:
        for other in others:
            yield Case("number", number, other, expected=True)


def published_cases(path: Path) -> Iterator[Case]:
    """Return the published mathematics cases whose prediction is a boxed answer or a short bare answer."""
    sys.path.insert(0, str(ROOT))
    from tests.grading.judged_cases import JUDGED

    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for row in map(json.loads, lines):
        prediction = row["prediction"]
        is_short = len(prediction) < 60 and "answer" not in prediction.lower()
        if row["kind"] == "math" and (r"\boxed" in prediction or is_short):
            name = f"{row['id']} {row['origin']}"
            yield Case(name, row["gold"], prediction, row["expected"], JUDGED.get(row["id"], ""))


def read_cases(path: Path) -> Iterator[Case]:
    """Read a file of `--cases`; exit with an error for a row without a required field."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        values = []
        for wanted, names in CASE_FIELDS.items():
            name = next((name for name in names if isinstance(row, dict) and row.get(name) is not None), None)
            if name is None:
                sys.exit(
                    f"error: {path}, line {number}: no field for the {wanted}; one of {', '.join(names)}"
                )
            values.append(row[name])
        yield Case(f"line {number}", str(values[0]), str(values[1]), bool(values[2]))


def atrium(kind: str, cases: list[Case]) -> list[bool]:
    with GraderPool(Verifier.build(kind, timeout_s=float(LIMIT_S))) as pool:
        futures = [pool.submit(case.completion, case.gold) for case in cases]
        return [future.result().is_correct for future in futures]


def limited(judge: Judge, completion: str, gold: str) -> bool:
    """Return a grader's verdict; False if it fails or exceeds the time limit."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        return judge(completion, gold)
    except Exception:  # an error of the grader counts as a rejection
        return False
    finally:
        signal.alarm(0)


def math_verify_raw(completion: str, gold: str) -> bool:
    from math_verify import parse, verify

    sides = [parse(text, parsing_timeout=None) for text in (f"${gold}$", completion)]
    return bool(verify(*sides, timeout_seconds=None))


def math_verify_boxed(completion: str, gold: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    sides = [
        parse(text, config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (rf"\boxed{{{gold}}}", completion)
    ]
    return bool(verify(*sides, timeout_seconds=None))


def qwen(completion: str, gold: str) -> bool:
    """Return the verdict of Qwen2.5-Math's rule, implemented from its description."""
    return _qwen_equal(_qwen_plain(_qwen_extract(completion)), _qwen_plain(gold))


def _qwen_extract(text: str) -> str:
    box = last_box(text)
    if box is not None:
        return box
    if "answer is" in text:
        return text.rpartition("answer is")[2].strip(" :.$\n")
    numbers = _NUMBER.findall(text.replace(",", ""))
    return numbers[-1] if numbers else ""


def _qwen_plain(text: str) -> str:
    text = re.sub(r"\\(?:left|right|!|,|;|:| )|\$|\^\{?\\circ\}?|\\%|%", "", text)
    text = re.sub(r"\\text\s*\{([^{}]*)\}\s*$", "", text) or text
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\s+", "", text.rpartition("=")[2] if text.count("=") == 1 else text).rstrip(".")


def _qwen_equal(answer: str, gold: str) -> bool:
    if answer.lower() == gold.lower():
        return True
    numbers = [_float(answer), _float(gold)]
    if None not in numbers:
        wanted = (gold_value := float(str(numbers[1]))) / 100, gold_value, gold_value * 100
        return any(abs(float(str(numbers[0])) - one) <= 1e-4 * abs(one) for one in wanted)
    parts = [text[1:-1].split(",") for text in (answer, gold) if text[:1] in "([" and text[-1:] in ")]"]
    if len(parts) == 2 and len(parts[0]) == len(parts[1]) > 1:
        return all(_qwen_equal(a, b) for a, b in zip(*parts, strict=True))
    return _symbolically_equal(answer, gold)


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _symbolically_equal(answer: str, gold: str) -> bool:
    import sympy
    from latex2sympy2_extended import latex2sympy

    a, b = latex2sympy(answer), latex2sympy(gold)
    if a == b or sympy.simplify(a - b) == 0:
        return True
    return abs(complex(sympy.N(a)) - complex(sympy.N(b))) <= 1e-4 * abs(complex(sympy.N(b)))


PEERS: dict[str, Judge] = {
    "math-verify raw": math_verify_raw,
    "math-verify boxed": math_verify_boxed,
    "Qwen2.5-Math rule": qwen,
}

if __name__ == "__main__":
    main()
