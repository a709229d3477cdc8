"""Running a tokenizer's chat template, a program of others, within bounds of its size and of its work."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Protocol

from atrium.errors import ConfigError

MAX_CHARS = 1 << 20
"""The longest chat template that is compiled; the longest of published models have some 20,000."""
MAX_LINES = 1_000_000
"""How many lines of a template one prompt may run; a usual prompt runs some hundred."""
_FILE = "<template>"  # what jinja2 calls the code that it makes of a text


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it."""

    chat_template: Any

    def encode(self, text: str, /) -> list[int]:
        """The token ids of a text, with the special tokens that the model expects at its start."""
        ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Any:  # noqa: ANN401 - transformers' own signature
        """The token ids (or text) of a conversation."""
        ...


def conversation_tokens(
    tokenizer: ChatTokenizer, turns: Sequence[Mapping[str, str]], options: Mapping[str, bool]
) -> list[int]:
    """The token ids of a conversation, up to where the next answer begins; `options` are the template's own.

    Raises `ConfigError` for whatever the template raises, and for one that is too long or never ends.
    """
    named = tokenizer.chat_template  # some models have several, by name
    try:
        for text in named.values() if isinstance(named, Mapping) else [named]:
            _check(text)
        with _bounded_work():
            token_ids: list[int] = tokenizer.apply_chat_template(
                turns, tokenize=True, add_generation_prompt=True, return_dict=False, **options
            )
    except Exception as error:  # a program of others raises anything
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"does not fit this tokenizer's chat template ({said}); "
            "choose one without a system turn, such as user_boxed, or another model"
        ) from error
    return token_ids


@cache
def _check(template: str) -> None:
    """Raise `ValueError` for what would never end before a line has run: compiling it, or one huge power."""
    from jinja2 import Environment

    if len(template) > MAX_CHARS:
        raise ValueError(f"it has {len(template):,} characters, and {MAX_CHARS:,} are allowed")
    before = ""
    for _, kind, value in Environment(autoescape=True).lex(template):
        if (kind, value) == ("operator", "**") and before not in ("(", ","):  # there it unpacks arguments
            raise ValueError("it computes a power, which could take for ever")
        before = before if kind == "whitespace" else value


@contextmanager
def _bounded_work() -> Iterator[None]:
    """Raise in the template once it has run `MAX_LINES`, counted and not timed, so that runs repeat."""
    num_lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal num_lines
        if event == "call":
            return count if frame.f_code.co_filename == _FILE else None
        num_lines += 1
        if num_lines > MAX_LINES:
            raise RuntimeError(f"it runs more than {MAX_LINES:,} lines for one prompt")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
