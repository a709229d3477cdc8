"""Rendering of chat templates.

They are untrusted code, so their length and number of executed lines are limited.

A conversation with a given date yields the same prompt in every process: the template receives this date
instead of the current one, and a template that draws random numbers is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from types import FrameType
from typing import Any, Protocol

from atrium.base.errors import ConfigError, reason_of
from atrium.base.section import CountOrZero

MAX_CHARS = 1 << 20
"""Maximum length of a chat template; the longest published ones have about 20,000 characters."""
MAX_LINES = 1_000_000
"""Maximum number of template lines executed for one prompt; a typical prompt needs a few hundred."""
_FILLED_IN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "date_string"})
_FILE = "<template>"  # jinja2's name for the code that it generates from a template


class ChatTokenizer(Protocol):
    """The tokenizer interface that prompts require; the tokenizers of transformers provide it."""

    chat_template: Any

    def encode(self, text: str, /) -> list[int]:
        """Return the token ids of a text, preceded by any special tokens that the model expects."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Any:  # noqa: ANN401 - transformers' own signature
        """Return the token ids of a conversation, or its text if `tokenize` is False in `options`."""


Option = bool | CountOrZero | str
"""The value of a chat template's option, such as Qwen3's `enable_thinking`."""


def conversation_tokens(
    tokenizer: ChatTokenizer,
    turns: Sequence[Mapping[str, str]],
    options: Mapping[str, Option],
    date: str | None = None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Return the token ids of a conversation, by default up to the start of the model's next answer.

    With `add_generation_prompt=False`, the template is asked to omit this start. `options` are passed to the
    template as variables. `date` (YYYY-MM-DD) is the current date for the template: `strftime_now` formats
    midnight of that day, and `date_string` is the date in Llama's format `26 Jul 2024`. With `date=None` the
    template reads the system clock. Raises `ConfigError` if the template raises an error, draws random
    numbers, computes a power, is too long, or executes too many lines.
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
    except Exception as error:  # untrusted code may raise any exception
        raise ConfigError(
            f"the tokenizer's chat template cannot format the prompt ({reason_of(error)}); choose another "
            "prompt template, such as user_boxed, which has no system turn, or another model"
        ) from error
    return token_ids


def _fix_state(template: str, date: str | None) -> None:
    """Set the clock and forbid random numbers in the compiled template, which transformers caches.

    The clock shows midnight of `date` (YYYY-MM-DD), or the system's time if `date` is None.
    """
    # The import is local because settings are checked without transformers. The function is private:
    # transformers has no public way to replace a template's functions.
    from transformers.utils import chat_template_utils

    environment = chat_template_utils._compile_jinja_template(template).environment
    environment.filters["random"] = environment.globals["lipsum"] = _refuse_random
    midnight = None if date is None else datetime.fromisoformat(date)
    environment.globals["strftime_now"] = _clock(midnight)


def options_of(tokenizer: ChatTokenizer) -> list[str]:
    """Return the names of the variables that the chat template reads and that a user may set.

    Variables that Atrium or transformers sets, such as the messages and the special tokens, are left out.
    """
    from jinja2 import meta
    from transformers.utils import chat_template_utils

    named = tokenizer.chat_template
    found: set[str] = set()
    for text in named.values() if isinstance(named, Mapping) else [named]:
        environment = chat_template_utils._compile_jinja_template(text).environment
        found |= meta.find_undeclared_variables(environment.parse(text))
    return sorted(name for name in found - _FILLED_IN if not name.endswith("_token"))


def _clock(fixed: datetime | None) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        return (fixed or datetime.now()).strftime(form)

    return strftime_now


def _refuse_random(*_: object, **__: object) -> str:
    raise ValueError("the template draws random numbers, so the prompt would differ each time")


@cache
def _check(template: str) -> None:
    """Raise `ValueError` for a template that is too long or computes a power.

    The line limit cannot stop the compilation of a long template or the computation of a huge power.
    """
    from jinja2 import Environment

    if len(template) > MAX_CHARS:
        raise ValueError(
            f"the template has {len(template):,} characters, more than the maximum of {MAX_CHARS:,}"
        )
    before = ""
    for _, kind, value in Environment(autoescape=True).lex(template):
        if (kind, value) == ("operator", "**") and before not in ("(", ","):  # there it unpacks arguments
            raise ValueError("the template uses ** (a power), which could take unlimited time and memory")
        before = before if kind == "whitespace" else value


@contextmanager
def _bounded_work() -> Iterator[None]:
    """Raise `RuntimeError` if chat templates in the `with` block execute more than `MAX_LINES` lines.

    The limit counts lines instead of seconds, so that the outcome is deterministic.
    """
    num_lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal num_lines
        if event == "call":
            return count if frame.f_code.co_filename == _FILE else None
        num_lines += 1
        if num_lines > MAX_LINES:
            raise RuntimeError(f"the template executes more than {MAX_LINES:,} lines for one prompt")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
