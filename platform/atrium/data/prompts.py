"""Prompts: the conversion of a problem's question to the token ids that a policy continues.

A prompt template adds an instruction, worked examples and an optional system turn, and may define strings
that end an answer. The markers of turns come from the tokenizer's chat template, so one prompt template
works with every model. The tokenizer is passed in: nothing here imports transformers.

Settings name a template of this module, or define one of their own (see `Prompt`).

Sources: the instruction of `qwen_boxed` is recommended for mathematics by the Qwen model cards. With a Qwen
tokenizer, `qwen_boxed` and `qwen_user_boxed` give the prompts that the evaluation code of
github.com/hkust-nlp/simpleRL-reason calls qwen25-math-cot and qwen-boxed. `matharena` and `matharena_aime`
come from github.com/eth-sri/matharena, `dapo` from arXiv 2503.14476, and `r1` from table 1 of arXiv
2501.12948. Unlike the published prompts, `dapo` and `r1` also ask for a box around the answer, because the
grader reads the box. `base_boxed` is specific to Atrium, for models without a chat template; `bare` adds
nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, PlainSerializer, Tag, model_validator

from atrium.base.errors import ConfigError
from atrium.base.processes import bounded_memory
from atrium.base.records import Problem, TokenIds
from atrium.base.section import Section, Text
from atrium.data.chat_templates import ChatTokenizer, Option, conversation_tokens

FIRST_PROMPT_BYTES = 2 << 30
"""Maximum additional memory in bytes while the first prompt is rendered: the limit for a chat template."""
_PLACEHOLDER = "{question}"
_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
_MATHARENA = "Put your final answer within \\boxed{}."
_AIME = "The answer is an integer between 0 and 999 inclusive."


PromptEncoder = Callable[[Problem], TokenIds]
"""A function that converts a problem to the tokens of its prompt."""


class WorkedExample(Section):
    """A question with its answer, shown to the model as an example."""

    question: Text
    """Question of the example, formatted like the problem's own question."""
    answer: Text
    """Answer that the model should imitate; without a chat template it follows the question directly."""


class PromptTemplate(Section):
    """The format in which a model receives a question, and the strings that end the model's answer.

    With the chat template, worked examples are turns of a conversation before the question. Without it, the
    prompt is plain text without a system turn: the worked examples, then the question, separated by
    `separator`. Plain text suits models that were not trained on chats.
    """

    name: Text = "own"
    """Name of the prompt in records."""
    system: Text | None = None
    """Text of the system turn; null leaves the system turn to the chat template."""
    examples: tuple[WorkedExample, ...] = ()
    """Questions with answers, shown before the question."""
    user: Text = _PLACEHOLDER
    """Text of the user turn; {question} stands for the problem's question and occurs exactly once."""
    separator: str = "\n\n"
    """Text between two examples, and between the last example and the question, in a plain-text prompt."""
    use_chat_template: bool = True
    """Whether the tokenizer's chat template marks the turns; false gives plain text."""
    chat_options: dict[str, Option] = Field(default_factory=dict)
    """Options of the chat template: switches, numbers or text, such as Qwen3's enable_thinking."""
    stop: tuple[Text, ...] = ()
    """Strings that end an answer; all tokens up to the one that completes a string are kept and trained."""

    @model_validator(mode="after")
    def _check_whole(self) -> PromptTemplate:
        if self.user.count(_PLACEHOLDER) != 1:
            raise ValueError(
                f"user must contain {_PLACEHOLDER} exactly once, got {self.user.count(_PLACEHOLDER)} times"
            )
        if not self.use_chat_template and (self.system is not None or self.chat_options):
            raise ValueError(
                "use_chat_template must be true with system or chat_options, which have no effect "
                "without a chat template"
            )
        return self

    @property
    def content_hash(self) -> str:
        """The SHA-256 (hex) of every field that affects the prompt or the end of an answer."""
        content: list[object] = [self.user, self.system, self.use_chat_template, dict(self.chat_options)]
        if self.examples or self.stop:
            examples = [[one.question, one.answer] for one in self.examples]
            content += [examples, self.separator, list(self.stop)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def encode_prompt(
    tokenizer: ChatTokenizer,
    problem: Problem,
    template: PromptTemplate,
    date: str | None = None,
    *,
    add_generation_prompt: bool = True,
) -> TokenIds:
    """Return the token ids [T] of a problem's prompt, up to the start of the model's answer.

    `date` is the date that the chat template receives (see `conversation_tokens`). With
    `add_generation_prompt=False`, the chat template is asked to omit the start of the answer. The problem's
    own system turn precedes the template's system turn, which is omitted if the problem's system turn
    contains it. The problem's earlier turns are placed, unchanged, between the worked examples and the
    question. Raises `ConfigError` if the tokenizer lacks a required chat template, if the chat template
    fails, or if plain text cannot represent the problem's turns.
    """
    if not template.use_chat_template:
        if problem.turns:
            raise ConfigError(
                f"prompt template '{template.name}' is plain text, but problem {problem.problem_id!r} has a "
                f"turn before its question (role {problem.turns[0][0]}); choose another prompt template"
                + (
                    ", or set `system: drop` for the dataset or benchmark"
                    if problem.turns[0][0] == "system"
                    else ""
                )
            )
        text = plain_prompt(problem.question, template)
        return np.asarray(tokenizer.encode(text), dtype=np.int32)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"prompt template '{template.name}' requires a tokenizer with a chat template, but this "
            f"tokenizer has none; choose another prompt template: {', '.join(_without_chat())}"
        )
    try:
        token_ids = conversation_tokens(
            tokenizer,
            prompt_turns(problem, template),
            template.chat_options,
            date,
            add_generation_prompt=add_generation_prompt,
        )
    except ConfigError as error:
        raise ConfigError(f"prompt template '{template.name}': {error}") from error
    return np.asarray(token_ids, dtype=np.int32)


def plain_prompt(question: str, template: PromptTemplate) -> str:
    """Return a plain-text prompt: the worked examples, then the question, joined by the separator."""
    shown = [template.user.replace(_PLACEHOLDER, one.question) + one.answer for one in template.examples]
    return template.separator.join([*shown, template.user.replace(_PLACEHOLDER, question)])


def prompt_turns(problem: Problem, template: PromptTemplate) -> list[dict[str, str]]:
    """Return the messages for the chat template (`role` and `content`); the last one is the question."""
    systems = [text for role, text in problem.turns if role == "system"]
    if template.system is not None and not any(template.system in text for text in systems):
        systems.append(template.system)
    turns = [{"role": "system", "content": "\n\n".join(systems)}] if systems else []
    for one in template.examples:
        turns.append({"role": "user", "content": template.user.replace(_PLACEHOLDER, one.question)})
        turns.append({"role": "assistant", "content": one.answer})
    turns += [{"role": role, "content": text} for role, text in problem.turns if role != "system"]
    turns.append({"role": "user", "content": template.user.replace(_PLACEHOLDER, problem.question)})
    return turns


def prompt_encoder(
    tokenizer: ChatTokenizer, template: PromptTemplate, date: str | None = None
) -> PromptEncoder:
    """Return a function that converts a problem to its prompt's tokens and caches the result.

    Call the returned function once before other threads start, because its first call limits the memory of
    the whole process while it renders the chat template. `date` is explained in `encode_prompt`.
    """
    known: dict[tuple[object, str], TokenIds] = {}

    def encode(problem: Problem) -> TokenIds:
        key = problem.turns, problem.question
        if key not in known:
            with nullcontext() if known else bounded_memory(FIRST_PROMPT_BYTES):
                known[key] = encode_prompt(tokenizer, problem, template, date)
        return known[key]

    return encode


def find_prompt_template(name: str) -> PromptTemplate:
    """Return the template with this name from `PROMPT_TEMPLATES`.

    Raises `ValueError`, with the most similar name, if there is no such template.
    """
    template = PROMPT_TEMPLATES.get(name)
    if template is None:
        near = difflib.get_close_matches(name, PROMPT_TEMPLATES, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(
            f"unknown prompt template {name}{hint or ';'} use one of {', '.join(PROMPT_TEMPLATES)}, or a "
            "mapping with user, system, examples or stop"
        )
    return template


def _shortened(template: PromptTemplate) -> object:
    """Serialize a shipped template as its name, and any other as the fields that are not defaults."""
    if PROMPT_TEMPLATES.get(template.name) == template:
        return template.name
    return template.model_dump(mode="json", exclude_defaults=True)


if TYPE_CHECKING:
    Prompt = PromptTemplate
else:
    Prompt = Annotated[
        Annotated[Text, AfterValidator(find_prompt_template), Tag("name")]
        | Annotated[PromptTemplate, Tag("own")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "own"),
        PlainSerializer(_shortened),
    ]
"""A template in settings: the name of a shipped template, or a mapping with the fields of a user's own."""


def _without_chat() -> list[str]:
    return [name for name, template in PROMPT_TEMPLATES.items() if not template.use_chat_template]


PROMPT_TEMPLATES: Mapping[str, PromptTemplate] = {
    template.name: template
    for template in (
        PromptTemplate(name="question"),
        PromptTemplate(name="qwen_boxed", system=_INSTRUCTION),
        PromptTemplate(
            name="qwen_user_boxed",
            system="You are a helpful assistant.",
            user=f"{_PLACEHOLDER}\n{_INSTRUCTION}",
        ),
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
        PromptTemplate(name="matharena", user=f"{_MATHARENA}\n\n{_PLACEHOLDER}"),
        PromptTemplate(name="matharena_aime", user=f"{_MATHARENA}\n{_AIME}\n\n{_PLACEHOLDER}"),
        PromptTemplate(
            name="dapo",
            user="Solve the following math problem step by step. The last line of your response should be of "
            "the form Answer: \\boxed{$Answer} (without quotes) where $Answer is the answer to the problem."
            f'\n\n{_PLACEHOLDER}\n\nRemember to put your answer on its own line after "Answer:".',
        ),
        PromptTemplate(
            name="r1",
            user="A conversation between User and Assistant. The user asks a question, and the Assistant "
            "solves it. The assistant first thinks about the reasoning process in the mind and then provides "
            "the user with the answer. The reasoning process and answer are enclosed within <think> </think> "
            "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> "
            "<answer> \\boxed{answer here} </answer>. "
            f"User: {_PLACEHOLDER} Assistant:",
            use_chat_template=False,
        ),
        PromptTemplate(
            name="base_boxed",
            user=f"Question:\n{_PLACEHOLDER}\n{_INSTRUCTION}\nAnswer:\n",
            use_chat_template=False,
        ),
        PromptTemplate(name="bare", use_chat_template=False),
    )
}
