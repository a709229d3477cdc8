r"""Where the answer of a completion stands: the last cluster of balanced `\boxed{}` after the thinking.

It reads text and judges nothing; what the boxed text means is `equivalence`'s business. One pass without
recursion, so the time is linear in the text, whatever is nested or left open in it.

**Thinking.** What stands before the last `</think>` is thought, and so is what follows a `<think>` that was
never closed. A model that was asked to think and wrote no `</think>` has not answered yet. Without
thinking no `</think>` is required, and then the whole text is the answer's; tags that the text carries
all the same still mark thought as thought, so that an answer inside them never counts.

**Cluster.** Boxes belong to one cluster, and form one list of answers, when what joins two neighbours is

- only spacing, math delimiters and punctuation: `\boxed{1}, \boxed{2}`;
- a few words that end in "and" or "or" and hold no end of a sentence: `\boxed{1} for part (a) and \boxed{2}`;
- either of them with a label before the next box: `x = \boxed{1}, y = \boxed{2}`.

Contradicting neighbours therefore are a list of two, which equals no single number; boxes further apart
are separate attempts, of which the last counts.

Without a box an answer is the last number of the text, or what stands behind words such as `Answer:`.
"""

from __future__ import annotations

import re

from atrium.records import REASONING_MARKERS

ANSWER = "{answer}"
"""Where the answer stands in words around it."""
_MAX_JOINT_CHARS = 50

# A box command (its backslash possibly doubled by escaping) with its opening brace; any other escaped
# character, so that `\{` and `\}` do not count; a brace.
_BRACES = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_ALL_BRACES = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|[{}]")  # `\boxed{185\}` is a slip
_FIRST_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")

_NUMBER = re.compile(r"(?:(?<![\w)}\]])-\s?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|-?\.\d+")

_DELIMITERS = re.compile(
    r"\\(?:text|textbf|mbox|mathrm)\s*\{|\\(?:quad|qquad)(?![a-zA-Z])|\\[\[\]()\\,;:! ]|[{}$*&~]"
)
_BLANK = re.compile(r"(?:[\s$~{}]|\\[,;:! ]|\\q?quad|\\text(?=\s*\{))*\\?")
_LABEL = r"(?:[A-Za-z\\][A-Za-z0-9\\_^(), ]{0,12}=\s*)"
_PUNCTUATION_JOINT = re.compile(rf"[\s,;.:/|]*|\s*[,;]\s*{_LABEL}")
_CONJUNCTION_JOINT = re.compile(rf"[^.!?\n]*\b(?:and|or)\b[\s,:]*{_LABEL}?", re.IGNORECASE)


def answer_text(text: str, *, thinking: bool) -> str | None:
    """The part of a completion that may hold its answer; None where the thinking never ended."""
    begin, end = REASONING_MARKERS
    _, tag, after = text.rpartition(end)
    if thinking and not tag:
        return None
    return after.partition(begin)[0]


def extract_answer(text: str, *, thinking: bool) -> str | None:
    r"""The content of the last cluster of balanced boxes, or None where there is no answer.

    Boxes of one cluster are joined by `", "`, empty and repeated ones left out. A box inside another
    belongs to the outer one. None: no balanced box, or nothing but spacing in the last cluster.
    """
    visible = answer_text(text, thinking=thinking)
    return None if visible is None else last_box(visible)


def last_box(visible: str) -> str | None:
    """As `extract_answer`, of a text without thoughts."""
    boxes = _outermost_boxes(visible, _BRACES) or _outermost_boxes(visible, _ALL_BRACES)
    if not boxes:
        return None
    cluster = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _is_joint(visible, box[2], cluster[-1][0]):
            break
        cluster.append(box)
    contents: list[str] = []
    for _, opening, closing in reversed(cluster):
        content = visible[opening : closing - 1].strip()
        if not _BLANK.fullmatch(content) and content not in contents[-1:]:
            contents.append(content)
    return ", ".join(contents) or None


def last_number(visible: str) -> str | None:
    """The last number of a text, such as -1,234.5. A minus that follows a value is an operation."""
    numbers = _NUMBER.findall(visible)
    return str(numbers[-1]).replace(" ", "") if numbers else None


def answer_after(visible: str, place: str) -> str | None:
    """What stands where `place` has {answer}, at its last occurrence in a text without thoughts.

    An answer ends with its line, or before what follows {answer} in `place`. Case, spacing and signs of
    emphasis around the answer do not matter.
    """
    before, _, after = place.partition(ANSWER)
    words = map(re.escape, re.findall(r"\w+|[^\w\s]", before))
    found = list(re.finditer(r"\s*".join(words), visible, re.IGNORECASE))
    if not found:
        return None
    line = visible[found[-1].end() :].lstrip(" \t\r\n*").partition("\n")[0]
    answer, end, _ = line.partition(after.strip()) if after.strip() else (line, "\n", "")
    return answer.strip(" \t\r*") or None if end else None


def _outermost_boxes(text: str, braces: re.Pattern[str]) -> list[tuple[int, int, int]]:
    """Start of the command, start of the content and end of each balanced box, inner ones left out."""
    first = _FIRST_BOX.search(text)
    if first is None:
        return []
    boxes: list[tuple[int, int, int]] = []
    open_braces: list[tuple[int, int] | None] = []  # a box's start and content start, None: other
    for match in braces.finditer(text, first.start()):
        token = match.group()
        if token == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                while boxes and boxes[-1][0] > opened[0]:
                    boxes.pop()
                boxes.append((*opened, match.end()))
        elif token == "{":
            open_braces.append(None)
        elif token.endswith("{") and len(token) > 2:
            open_braces.append((match.start(), match.end()))
    return boxes


def _is_joint(text: str, start: int, end: int) -> bool:
    if end - start > _MAX_JOINT_CHARS:
        return False
    between = _DELIMITERS.sub(" ", text[start:end])
    return bool(_PUNCTUATION_JOINT.fullmatch(between) or _CONJUNCTION_JOINT.fullmatch(between))
