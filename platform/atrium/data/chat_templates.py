"""Running a tokenizer's chat template, a program of others, within bounds of its size and of its work.

A template renders the same prompt at any time and in any process: it sees one fixed date, and a template
that draws random numbers is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import cache
from types import FrameType
from typing import Any, Protocol, Self

from atrium.base.errors import ConfigError
from atrium.base.section import CountOrZero

MAX_CHARS = 1 << 20
"""The longest chat template that is compiled; the longest of published models have some 20,000."""
MAX_LINES = 1_000_000
"""How many lines of a template one prompt may run; a usual prompt runs some hundred."""
_FILLED_IN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "date_string"})
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


Option = bool | CountOrZero | str
"""The value of one of a chat template's own options."""


def conversation_tokens(
    tokenizer: ChatTokenizer,
    turns: Sequence[Mapping[str, str]],
    options: Mapping[str, Option],
    date: str | None = None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The token ids of a conversation, up to where the next answer begins; `options` are the template's own.

    `date` (YYYY-MM-DD) is the present day for the template: its `strftime_now` formats midnight of that day,
    and it is passed as `date_string`, as in Llama's `26 Jul 2024`; None leaves it the clock. Raises
    `ConfigError` for whatever the template raises, for one that draws random numbers, and for one that is too
    long or never ends.
    """
    named = tokenizer.chat_template  # some models have several, by name
    dated = {} if date is None else {"date_string": datetime.fromisoformat(date).strftime("%d %b %Y")}
    try:
        for text in named.values() if isinstance(named, Mapping) else [named]:
            _check(text)
            _fix_state(text, date)
        with _bounded_work():
            token_ids: list[int] = tokenizer.apply_chat_template(
                turns,
                tokenize=True,
                add_generation_prompt=add_generation_prompt,
                return_dict=False,
                **{**dated, **options},
            )
    except Exception as error:  # a program of others raises anything
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"does not fit this tokenizer's chat template ({said}); "
            "choose another, such as user_boxed, which has no system turn, or another model"
        ) from error
    return token_ids


def _fix_state(template: str, date: str | None) -> None:
    """Give the template, as transformers has compiled and keeps it, a fixed clock and no random numbers."""
    # Only now: settings are checked without transformers. Private: it has no way to pass a function.
    from transformers.utils import chat_template_utils

    environment = chat_template_utils._compile_jinja_template(template).environment
    environment.filters["random"] = environment.globals["lipsum"] = _refuse_random
    midnight = None if date is None else datetime.fromisoformat(date)
    environment.globals["strftime_now"] = _clock(midnight)


def options_of(tokenizer: ChatTokenizer) -> list[str]:
    """The names that the chat template takes from outside, those that transformers fills in left out."""
    from jinja2 import meta
    from transformers.utils import chat_template_utils

    named = tokenizer.chat_template
    found: set[str] = set()
    for text in named.values() if isinstance(named, Mapping) else [named]:
        environment = chat_template_utils._compile_jinja_template(text).environment
        found |= meta.find_undeclared_variables(environment.parse(text))
    return sorted(name for name in found - _FILLED_IN if not name.endswith("_token"))


@contextmanager
def moved_clock() -> Iterator[None]:
    """Within the body, let transformers' own functions for templates see another time."""
    from transformers.utils import chat_template_utils

    class Moved(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(days=401, hours=7)

    before = chat_template_utils.datetime
    chat_template_utils.datetime = Moved
    try:
        yield
    finally:
        chat_template_utils.datetime = before


def _clock(fixed: datetime | None) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        return (fixed or datetime.now()).strftime(form)

    return strftime_now


def _refuse_random(*_: object, **__: object) -> str:
    raise ValueError("it draws random numbers, so a prompt would never be the same again")


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
