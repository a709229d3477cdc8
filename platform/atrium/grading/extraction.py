r"""Extraction of a completion's answer: the last cluster of balanced `\boxed{}` after the reasoning.

This module does not judge answers; `equivalence` interprets the boxed text. The text is parsed in one pass
without recursion, so the time is linear in its length, even with nested or unclosed boxes.

**Reasoning.** Text before the last `</think>` is reasoning, and so is text after an unclosed `<think>`. With
`thinking`, a completion without `</think>` has no answer. Without `thinking`, no `</think>` is required and
the answer may be anywhere in the text; if tags occur nevertheless, the text inside them is still reasoning,
and an answer in it never counts.

**Cluster.** Boxes belong to one cluster, and form one list of answers, if the text between two neighbors is

- only spacing, math delimiters and punctuation: `\boxed{1}, \boxed{2}`;
- a few words of one sentence that end in "and" or "or": `\boxed{1} for part (a) and \boxed{2}`;
- one of these with a label before the next box: `x = \boxed{1}, y = \boxed{2}`;
- a sign or words for an approximation before a box with a decimal: `\boxed{\frac13} \approx \boxed{0.333}`;
- such a sign or words before any number if the first box is not a number: `\boxed{\pi} \approx \boxed{3}`;
- an equals sign before a decimal with dots: `\boxed{\frac13} = \boxed{0.333\ldots}`.

Two contradicting neighbors therefore form a list of two, which equals no single number. Boxes further apart
are separate attempts, and only the last attempt counts. If the last box is never closed, the completion was
truncated and has no answer. Braces around a number, a letter or a command may be missing: `\boxed 5`.

Other functions extract the last number of the text, or the text after words such as `Answer:`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from atrium.base.records import REASONING_MARKERS

ANSWER = "{answer}"
"""Placeholder for the answer in the `place` of `answer_after`."""
_MAX_JOINT_CHARS = 50

# A box command (its backslash possibly doubled by escaping) with its opening brace; any other escaped
# character, so that `\{` and `\}` do not count; a brace.
_BOX = r"\\{1,4}(?:boxed|fbox|framebox)(?![a-zA-Z])(?:\s*\[[^\[\]{}]{0,20}\])*\s*"
_BRACES = re.compile(rf"{_BOX}\{{|\\.|[{{}}]", re.DOTALL)
_ALL_BRACES = re.compile(rf"{_BOX}\{{|[{{}}]")  # `\boxed{185\}` is a typo
_FIRST_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])")
_ARGUMENT = r"(?:\{[^{}]*\}|[0-9])"
_UNBRACED = re.compile(
    rf"{_BOX}(?:\$\s*)?(?P<content>(?>[0-9]+(?:,[0-9]{{3}})*(?:\.[0-9]+)?|\.[0-9]+|[a-zA-Z](?![a-zA-Z])|"
    rf"\\[dt]?frac\s*{_ARGUMENT}\s*{_ARGUMENT}|\\(?:sqrt|text|textbf|mathrm|mathbf)\s*{_ARGUMENT}|"
    rf"[-+*/=!|]|[_^]{_ARGUMENT}|\\?%|\([^()${{}}]*\)|\\(?:pi|infty|emptyset|cdot|times)(?![a-zA-Z])\s*)+)"
    r"(?=\s*(?:[$.,;:!?]|\\[)\]]|\Z|\n))"
)

_NUMBER = re.compile(r"(?:(?<![\w)}\]])-\s?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|-?\.\d+")

_DELIMITERS = re.compile(
    r"\\(?:text|textbf|mbox|mathrm)\s*\{|\\(?:quad|qquad)(?![a-zA-Z])|\\[\[\]()\\,;:! ]|[{}$*&~]"
)
_BLANK = re.compile(r"(?:[\s$~{}]|\\[,;:! ]|\\q?quad|\\text(?=\s*\{))*\\?")
_LABEL = r"(?:[A-Za-z\\][A-Za-z0-9\\_^(), ]{0,12}=\s*)"
_PUNCTUATION_JOINT = re.compile(rf"[\s,;.:/|]*|\s*[,;]\s*{_LABEL}")
_APPROXIMATION_JOINT = re.compile(
    r"(?!.*\b(?:not|wait|wrong|correct|instead|actually)\b)[^!?\n]*"
    r"(?:\\approx|\\simeq|≈|\b(?:approximately|approx|about|roughly|numerically)\b)[\s,:.=]*",
    re.IGNORECASE,
)
_ENDLESS = re.compile(r"\.[0-9]+\s*(?:\\[lc]?dots|\.\.\.|…)")
_EQUALITY_JOINT = re.compile(r"\s*=\s*")
_NUMERAL = re.compile(r"\s*[-+]?[0-9,]*\.?[0-9]+\s*")
_DECIMAL = re.compile(r"\s*(?:\\approx|≈)?\s*[-+]?[0-9,]*\.[0-9]+(?![0-9.]).*", re.DOTALL)
_CONJUNCTION_JOINT = re.compile(rf"[^.!?\n]*\b(?:and|or)\b[\s,:]*{_LABEL}?", re.IGNORECASE)


def answer_text(text: str, *, thinking: bool) -> str | None:
    """Return the part of a completion that may contain an answer: the text outside the reasoning.

    Returns None if `thinking` is set and the completion has no `</think>`.
    """
    begin, end = REASONING_MARKERS
    _, tag, after = text.rpartition(end)
    if thinking and not tag:
        return None
    return after.partition(begin)[0]


def extract_answer(text: str, *, thinking: bool) -> str | None:
    r"""Return the content of a completion's last cluster of boxes, or None if there is no answer.

    A box is `\boxed{...}` with balanced braces. Adjacent boxes form a cluster, as the module describes. Their
    contents are joined by `", "`, or by `\approx` before an approximation; empty boxes, and boxes that repeat
    the previous one, are dropped. A nested box is part of the outer box's content. There is no answer if
    there is no box, if the last box is never closed, if the last cluster contains only white space, or if
    `thinking` is set and the completion has no `</think>`.
    """
    visible = answer_text(text, thinking=thinking)
    return None if visible is None else last_box(visible)


def last_box(visible: str) -> str | None:
    """Return the content of the last cluster of boxes in a text without reasoning, or None."""
    boxes = _outermost_boxes(visible, _BRACES) or _outermost_boxes(visible, _ALL_BRACES)
    if not boxes:
        return None
    cluster, joints = [boxes[-1]], [""]
    for box in reversed(boxes[:-1]):
        joint = _joint(visible, box, cluster[-1])
        if joint is None:
            break
        joints[-1:] = [joint, ""]
        cluster.append(box)
    answer = last = ""
    for box, joint in zip(reversed(cluster), reversed(joints), strict=True):
        if not _BLANK.fullmatch(box.content) and box.content != last:
            answer += (joint if answer else "") + box.content
            last = box.content
    return answer or None


def last_number(visible: str) -> str | None:
    """Return the last number of a text, such as -1,234.5.

    A minus sign between two values is no part of the number: the last number of `5-3` is 3.
    """
    numbers = _NUMBER.findall(visible)
    return str(numbers[-1]).replace(" ", "") if numbers else None


def answer_after(visible: str, place: str) -> str | None:
    """Return the answer in the last match of `place`, in a text without reasoning.

    `place` is text that contains {answer}, such as `Answer: {answer}`. The answer extends to the end of its
    line, or to the text that follows {answer} in `place`. The words before {answer} match regardless of case
    and white space, and white space and asterisks around the answer are dropped. Returns None if there is no
    match or no answer, or if the line does not contain the text that follows {answer}.
    """
    before, _, after = place.partition(ANSWER)
    words = map(re.escape, re.findall(r"\w+|[^\w\s]", before))
    found = list(re.finditer(r"\s*".join(words), visible, re.IGNORECASE))
    if not found:
        return None
    line = visible[found[-1].end() :].lstrip(" \t\r\n*").partition("\n")[0]
    answer, end, _ = line.partition(after.strip()) if after.strip() else (line, "\n", "")
    return answer.strip(" \t\r*") or None if end else None


class _Box(NamedTuple):
    """A box in a text: the start of its command, its content, and its end."""

    start: int
    content: str
    end: int


def _outermost_boxes(text: str, braces: re.Pattern[str]) -> list[_Box]:
    """Return the outermost boxes, including boxes without braces.

    `braces` matches a box command with its opening brace, or a single brace. The result is empty if the last
    box is never closed.
    """
    first = _FIRST_BOX.search(text)
    if first is None:
        return []
    boxes: list[_Box] = []
    open_braces: list[tuple[int, int] | None] = []  # start of a box and of its content; None for other braces
    for match in braces.finditer(text, first.start()):
        token = match.group()
        if token == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                while boxes and boxes[-1].start > opened[0]:
                    boxes.pop()
                boxes.append(_Box(opened[0], text[opened[1] : match.start()].strip(), match.end()))
        elif token == "{":
            open_braces.append(None)
        elif token.endswith("{") and len(token) > 2:
            open_braces.append((match.start(), match.end()))
    if text.count("box", first.start()) > len(boxes):
        boxes = _with_unbraced(text, first.start(), boxes)
    opened_boxes = [opened[0] for opened in open_braces if opened is not None]
    return boxes if boxes and boxes[-1].end > max(opened_boxes, default=-1) else []


def _with_unbraced(text: str, start: int, boxes: list[_Box]) -> list[_Box]:
    r"""Return `boxes` and the unbraced boxes outside them, such as `\boxed 5`, in the order of the text.

    The search for unbraced boxes begins at `start`.
    """
    merged: list[_Box] = []
    rest = iter([*boxes, _Box(len(text) + 1, "", len(text) + 1)])
    following = next(rest)
    for match in _UNBRACED.finditer(text, start):
        while following.end <= match.start():
            merged.append(following)
            following = next(rest)
        if match.start() < following.start:
            merged.append(_Box(match.start(), match["content"], match.end()))
    return [*merged, *(box for box in (following, *rest) if box.start <= len(text))]


def _joint(text: str, first: _Box, second: _Box) -> str | None:
    """Return the separator for the contents of two adjacent boxes, or None if they are separate attempts.

    The separator is a comma if the boxes form a list, and the sign for an approximation if the second box
    approximates the first.
    """
    between = text[first.end : second.start]
    if len(between) > 2 * _MAX_JOINT_CHARS:
        return None
    between = _DELIMITERS.sub(" ", between)
    is_rounded = _DECIMAL.fullmatch(second.content) or (
        _NUMERAL.fullmatch(second.content) and not _NUMERAL.fullmatch(first.content)
    )
    if is_rounded and (_APPROXIMATION_JOINT.fullmatch(between) or r"\approx" in second.content):
        return r" \approx "
    if len(between) > _MAX_JOINT_CHARS:
        return None
    if _EQUALITY_JOINT.fullmatch(between) and _ENDLESS.search(second.content):
        return r" \approx "
    is_list = _PUNCTUATION_JOINT.fullmatch(between) or _CONJUNCTION_JOINT.fullmatch(between)
    return ", " if is_list else None
