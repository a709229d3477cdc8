"""Checks of prompt settings against the chat template, by rendering with and without each setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from atrium.base.errors import ConfigError
from atrium.base.processes import bounded_memory
from atrium.base.records import Problem
from atrium.data.chat_templates import ChatTokenizer, Option, options_of
from atrium.data.prompts import FIRST_PROMPT_BYTES, PromptTemplate, encode_prompt

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")
_OTHER_TEXT = "Answer in one word."
_SHOWN_END = 40

Render = Callable[..., list[int] | None]
"""A function that renders the prompt with some template fields replaced.

It returns the prompt's tokens, or None if rendering raises `ConfigError`.
"""


def check_prompt(
    tokenizer: ChatTokenizer, template: PromptTemplate, problem: Problem, date: str | None
) -> list[str]:
    """Return notes about valid but unusual prompts, one line each (empty without a chat template).

    Raises `ConfigError` if the chat template fails, if a second rendering differs from the first, if the
    prompt contains a memory address, or if a turn or a chat option of the settings has no effect on the
    prompt.
    """
    if not template.use_chat_template:
        return []
    with bounded_memory(FIRST_PROMPT_BYTES):
        prompt: list[int] = encode_prompt(tokenizer, problem, template, date).tolist()
    decode = getattr(tokenizer, "decode", None)
    text = "" if decode is None else str(decode(prompt))
    render = _renderer(tokenizer, template, problem, date)
    _check_repeats(template, prompt, text, render)
    _check_turns(template, prompt, render)
    for name in template.chat_options:
        _check_option(tokenizer, template, name, prompt, render)
    if render(add_generation_prompt=False) != prompt:
        return []
    end = f", which ends with {text[-_SHOWN_END:]!r}" if text else ""
    return [
        f"the chat template adds no generation prompt: answers continue the prompt{end}; this is right "
        "only for a model trained that way"
    ]


def _renderer(
    tokenizer: ChatTokenizer, template: PromptTemplate, problem: Problem, date: str | None
) -> Render:
    def render(*, add_generation_prompt: bool = True, **fields: object) -> list[int] | None:
        changed = template.model_copy(update=fields)
        try:
            prompt = encode_prompt(
                tokenizer, problem, changed, date, add_generation_prompt=add_generation_prompt
            )
        except ConfigError:
            return None
        found: list[int] = prompt.tolist()
        return found

    return render


def _check_repeats(template: PromptTemplate, prompt: list[int], text: str, render: Render) -> None:
    """Raise `ConfigError` if a second rendering differs from `prompt`, or if `text` has a memory address.

    `prompt` contains the token ids of the first rendering. `text` is the decoded prompt.
    """
    again = render()
    if again == prompt and not _ADDRESS.search(text):
        return
    what = "a clock or other changing state" if again != prompt else "a memory address"
    raise ConfigError(
        f"prompt template '{template.name}': the tokenizer's chat template reads {what}, so a question's "
        "prompt would differ each time; correct chat_template in the model's folder, or choose a prompt "
        "with use_chat_template=false"
    )


def _check_turns(template: PromptTemplate, prompt: list[int], render: Render) -> None:
    """Raise `ConfigError` if a turn given in the settings is missing from the prompt."""
    turns = (
        ("system turn", template.system is not None, {"system": f"{template.system} {_OTHER_TEXT}"}),
        ("worked examples", bool(template.examples), {"examples": ()}),
        ("question", True, {"user": f"{template.user} {_OTHER_TEXT}"}),
    )
    for what, is_asked, changed in turns:
        if is_asked and render(**changed) == prompt:
            raise ConfigError(
                f"prompt template '{template.name}': the tokenizer's chat template omits the {what}, so "
                "the model would not see it; choose another prompt, such as user_boxed, which puts all "
                "instructions into the question, or a prompt with use_chat_template=false"
            )


def _check_option(
    tokenizer: ChatTokenizer, template: PromptTemplate, name: str, prompt: list[int], render: Render
) -> None:
    """Raise `ConfigError` if neither removing nor changing a chat option changes the prompt."""
    value = template.chat_options[name]
    others = {key: one for key, one in template.chat_options.items() if key != name}
    if isinstance(value, bool):
        another: Option = not value
    else:
        another = f"{value}?" if isinstance(value, str) else value + 1
    if any(render(chat_options=one) != prompt for one in (others, {**others, name: another})):
        return
    read = options_of(tokenizer)
    near = difflib.get_close_matches(name, read, n=1)
    hint = f"did you mean {near[0]}?" if near else f"its options are {', '.join(read) or 'none'}"
    raise ConfigError(
        f"prompt template '{template.name}': chat_options.{name} has no effect in this tokenizer's chat "
        f"template; {hint}"
    )
