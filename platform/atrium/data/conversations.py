"""Conversion of message lists to prompts: the system turn, earlier turns, the question, and its solution.

A turn is an object with `role` and `content`, or ShareGPT's `from` and `value`. The last turn of the user is
the question. The turns before it remain in the prompt, as few-shot examples or earlier conversation. A
trailing turn of the assistant is a solution, which is not part of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrium.data.fields import UnreadableValueError, opened

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The prompt of a row (the question and the turns before it), and the solution after it, or None.

    `turns` contains the role and text of each turn before the question.
    """

    question: str
    turns: tuple[tuple[str, str], ...] = ()
    solution: str | None = None

    @property
    def system(self) -> str | None:
        """The text of the system turn, which is always the first turn, or None without a system turn."""
        return self.turns[0][1] if self.turns and self.turns[0][0] == "system" else None

    @property
    def earlier(self) -> tuple[tuple[str, str], ...]:
        """The turns (role, text) of the user and the assistant before the question."""
        return self.turns[1:] if self.system is not None else self.turns


def asked(value: object) -> Asked:
    """Return the prompt in a field's value, which is a question, a message list, or a message list in JSON.

    Raises `UnreadableValueError` if there is no question, if a turn has no text or an unknown role, or if a
    system turn follows a turn of the user or the assistant. Several system turns at the start are joined.
    """
    if isinstance(value, str):
        value = opened(value) if value.lstrip().startswith("[{") else value
    if isinstance(value, str) and value.strip():
        return Asked(question=value.strip())
    if isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value):
        return _of_turns([_turn(turn) for turn in value])
    raise UnreadableValueError("the question is missing")


def _of_turns(turns: Sequence[tuple[str, str]]) -> Asked:
    places = [index for index, (role, _) in enumerate(turns) if role == "user"]
    if not places or not turns[places[-1]][1]:
        raise UnreadableValueError(
            "the question is missing, since the message list has no user turn with text"
        )
    first = next(index for index, (role, _) in enumerate(turns) if role != "system")
    if any(role == "system" for role, _ in turns[first:]):
        raise UnreadableValueError("a system turn must be the first turn")
    system = "\n\n".join(text for _, text in turns[:first] if text)
    after = [text for _, text in turns[places[-1] + 1 :] if text]
    return Asked(
        question=turns[places[-1]][1],
        turns=(*((("system", system),) if system else ()), *turns[first : places[-1]]),
        solution="\n".join(after) or None,
    )


def _turn(turn: Mapping[str, Any]) -> tuple[str, str]:
    """Return the role and text of a turn; a turn without a role counts as a user turn."""
    name = next((turn[key] for key in ("role", "from") if turn.get(key) is not None), "user")
    role = _ROLES.get(str(name).lower())
    if role is None:
        raise UnreadableValueError(
            f"a turn has the unknown role {str(name)[:40]!r}, expected one of {', '.join(_ROLES)}"
        )
    text = next((turn[key] for key in ("content", "value") if turn.get(key) is not None), None)
    if isinstance(text, list):
        text = "\n".join(_part(part) for part in text)
    if not isinstance(text, str):
        raise UnreadableValueError(f"a turn with the role {role} has no text in content or value")
    return role, text.strip()


def _part(part: object) -> str:
    """Return the text of one part of a turn whose content is a list of parts."""
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise UnreadableValueError(f"a turn has a part of type {str(kind)[:40]!r}, expected text")
