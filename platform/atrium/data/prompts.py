r"""Prompts: how a problem's question becomes the token ids that a policy continues.

A template adds an instruction and an optional system turn; the turns' own markers come from the
tokenizer's chat template, so one template serves every model. The tokenizer is passed in: nothing here
imports transformers.

Sources: on a Qwen tokenizer `qwen_boxed` and `qwen25_math` give the prompts that the evaluation code of
github.com/hkust-nlp/simpleRL-reason calls qwen-boxed and qwen25-math-cot; the instruction is the one
that the Qwen model cards advise for mathematics. `base_boxed` is Atrium's own, for models without chat.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from atrium.errors import ConfigError
from atrium.records import Problem, TokenIds

_PLACEHOLDER = "{question}"
_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it."""

    chat_template: Any

    def encode(self, text: str, /) -> list[int]:
        """The token ids of a text, with the special tokens that the model expects at its start."""
        ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Any:  # noqa: ANN401 - transformers' own signature
        """The token ids (or text) of a conversation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """How one question is put to a model.

    `user` holds `{question}` exactly once (otherwise `ConfigError`) and is taken literally elsewhere.
    With `use_chat_template` false the user text alone is the prompt, for models that never saw a
    chat; there is then no system turn. `chat_options` reach the chat template, e.g. Qwen3's
    `enable_thinking`.
    """

    name: str
    user: str = _PLACEHOLDER
    system: str | None = None
    use_chat_template: bool = True
    chat_options: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.user.count(_PLACEHOLDER) != 1:
            raise ConfigError(
                f"prompt template '{self.name}': the user text must hold {_PLACEHOLDER} exactly once, "
                f"not {self.user.count(_PLACEHOLDER)} times"
            )
        if not self.use_chat_template and (self.system is not None or self.chat_options):
            raise ConfigError(
                f"prompt template '{self.name}': a system turn and chat options have no effect "
                "without the chat template; remove them or set use_chat_template"
            )

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) over all that shapes the prompt: every field but the name."""
        content = [self.user, self.system, self.use_chat_template, dict(self.chat_options)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def encode_prompt(tokenizer: ChatTokenizer, problem: Problem, template: PromptTemplate) -> TokenIds:
    """The prompt's token ids [T], up to where the model's answer begins.

    Raises `ConfigError` when the template needs a chat template and the tokenizer has none.
    """
    user = template.user.replace(_PLACEHOLDER, problem.question)
    if not template.use_chat_template:
        return np.asarray(tokenizer.encode(user), dtype=np.int32)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"prompt template '{template.name}' needs a tokenizer with a chat template and this "
            f"one has none; choose one of {', '.join(_without_chat())}"
        )
    turns = [{"role": "user", "content": user}]
    if template.system is not None:
        turns.insert(0, {"role": "system", "content": template.system})
    token_ids = tokenizer.apply_chat_template(
        turns,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        **template.chat_options,
    )
    return np.asarray(token_ids, dtype=np.int32)


def find_prompt_template(name: str) -> PromptTemplate:
    """The template of that name in `PROMPT_TEMPLATES`; `ConfigError` names the nearest otherwise."""
    template = PROMPT_TEMPLATES.get(name)
    if template is None:
        near = difflib.get_close_matches(name, PROMPT_TEMPLATES, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"unknown prompt template '{name}', allowed: {', '.join(PROMPT_TEMPLATES)}{hint}")
    return template


def _without_chat() -> list[str]:
    return [name for name, template in PROMPT_TEMPLATES.items() if not template.use_chat_template]


PROMPT_TEMPLATES: Mapping[str, PromptTemplate] = {
    template.name: template
    for template in (
        PromptTemplate(name="question"),
        PromptTemplate(
            name="qwen_boxed",
            system="You are a helpful assistant.",
            user=f"{_PLACEHOLDER}\n{_INSTRUCTION}",
        ),
        PromptTemplate(name="qwen25_math", system=_INSTRUCTION),
        PromptTemplate(name="user_boxed", user=f"{_PLACEHOLDER}\n\n{_INSTRUCTION}"),
        PromptTemplate(
            name="qwen3_thinking",
            user=f"{_PLACEHOLDER}\n\n{_INSTRUCTION}",
            chat_options={"enable_thinking": True},
        ),
        PromptTemplate(
            name="qwen3_direct",
            user=f"{_PLACEHOLDER}\n\n{_INSTRUCTION}",
            chat_options={"enable_thinking": False},
        ),
        PromptTemplate(
            name="base_boxed",
            user=f"Question:\n{_PLACEHOLDER}\n{_INSTRUCTION}\nAnswer:\n",
            use_chat_template=False,
        ),
        PromptTemplate(name="bare", use_chat_template=False),
    )
}
