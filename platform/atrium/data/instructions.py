r"""Removal of instructions from published questions, so that no prompt contains two instructions.

An instruction says how to answer ("put your final answer within \boxed{}"), not what the question is. Only
sentences at the very beginning of a question, and sentences or clauses at its very end, are removed, and only
if they ask for thinking step by step or name an answer format that no problem requires by itself (`\boxed`,
`####`, `Answer:`). A question that consists only of instructions is kept.

The phrases come from the published prompts of DAPO, verl, DeepScaleR and Qwen2.5-Math.
"""

from __future__ import annotations

import re

_POLITE = (
    r"(?:(?:please|remember|also|then|and|finally|make|be|sure|to|you|should|must|always|let['’]?s|let us"
    r"|don['’]?t forget)[,:]?\s+)*"
)
_VERB = (
    r"(?:think|reason|solve|put|present|output|provide|give|write|enclose|wrap|box|return|place|show|state"
    r"|express|report|respond|explain|conclude)"
)
_SUBJECT = r"(?:your (?:final )?(?:answer|response)|the (?:final )?answer|the last line)"
_START = re.compile(rf"(?<![\w\\]){_POLITE}{_VERB}\b", re.IGNORECASE)
_SUBJECT_START = re.compile(
    r"(?<!\S)(?:Your (?:final )?(?:answer|response)|The (?:final )?answer|The last line)\b"
)
_SENTENCE_START = re.compile(rf"{_POLITE}(?:{_VERB}|{_SUBJECT})\b", re.IGNORECASE)
_FORM = re.compile(r"\\+boxed\b|####|['\"“]?Answer:|<answer>|\bboxed\b", re.IGNORECASE)
_MATH = re.compile(r"\$\$?[^$]+\$\$?|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_BOX = re.compile(r"\\+boxed\s*(?:\{(?:[^{}]|\{[^{}]*\})*\})?")
_BLANK_BOX = re.compile(r"\\+boxed\s*\{\s*\\[hv]?phantom\b(?:[^{}]|\{[^{}]*\})*\}")
_TARGET = re.compile(r"\b(?:answer|result|solution|response)\b", re.IGNORECASE)
_STEPWISE = re.compile(r"\bstep[- ]by[- ]step\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_GLUE = re.compile(r"(?:[\s,;]|\b(?:and|then)\b)+\Z", re.IGNORECASE)
_MAX_SENTENCES = 4


def without_instruction(question: str) -> tuple[str, str | None]:
    """Return the question without instructions at its beginning and end, and the removed text (or None)."""
    text, after = _without_end(question.strip())
    text, before = _without_beginning(text)
    taken = " ".join(part for part in (before, after) if part)
    if not taken or not any(character.isalnum() for character in text):
        return question.strip(), None
    return text, taken


def _without_end(text: str) -> tuple[str, str]:
    taken = ""
    for _ in range(2 * _MAX_SENTENCES):
        breaks = [match.end() for match in _SENTENCE_END.finditer(text)]
        sentence_start = breaks[-1] if breaks else 0
        starts = [match.start() for match in _START.finditer(text, sentence_start)]
        starts = starts or [match.start() for match in _SUBJECT_START.finditer(text, sentence_start)]
        # The last position that can begin an instruction: the text before it may be the question.
        found = [start for start in starts if _is_instruction(text[start:])]
        if not found:
            break
        taken = f"{text[found[-1] :]} {taken}".strip()
        # "step by step, and put": the conjunction belongs to neither part.
        head = text[: found[-1]]
        text = _GLUE.sub("", head) if found[-1] > sentence_start else head.rstrip()
    return text, taken


def _without_beginning(text: str) -> tuple[str, str]:
    taken = ""
    for _ in range(_MAX_SENTENCES):
        match = _SENTENCE_END.search(text)
        if match is None:
            break
        sentence = text[: match.start()]
        if not _SENTENCE_START.match(sentence) or not _is_instruction(sentence):
            break
        taken = f"{taken} {sentence}".strip()
        text = text[match.end() :]
    return text, taken


def _is_instruction(text: str) -> bool:
    if _STEPWISE.search(text):
        return True
    text = _BLANK_BOX.sub("", _MATH.sub(_without_equation, text))
    return bool(_FORM.search(text) and _TARGET.search(text))


def _without_equation(math: re.Match[str]) -> str:
    """Return an empty string for an equation with a box in place of a value, and any other math unchanged.

    A box in such an equation belongs to the question and does not indicate an instruction.
    """
    rest = _BOX.sub("", math[0])
    return "" if rest != math[0] and re.search(r"[0-9A-Za-z=]", rest) else math[0]
