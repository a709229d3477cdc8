"""What is checked before a run folder is made: the data, the tokenizer, and the room for prompts.

A mistake in any of them ends the command and leaves no run behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from atrium.assemble.bank import read_bank
from atrium.assemble.ranks import explained_by
from atrium.assemble.task import Task, build_task, evaluated_benchmark, require_room
from atrium.config.compose import from_json, to_json
from atrium.config.schema import RunConfig
from atrium.data.prompts import PromptTemplate, prompt_encoder
from atrium.models.context import Context
from atrium.models.policy import load_tokenizer
from atrium.models.settings import HubModelSettings, TinyModelSettings
from atrium.models.tiny import build_tokenizer
from atrium.records import Problem, TokenIds
from atrium.rollout.stored_rollouts import StoredCompletion
from atrium.tracking.layout import CACHE_DIR
from atrium.train.ranks.ranks import SINGLE, Ranks


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The data of a run that may begin; `lines` are for its log."""

    task: Task
    stored: list[StoredCompletion] | None
    lines: tuple[str, ...]


def prepare(config: RunConfig, ranks: Ranks = SINGLE) -> Prepared:
    """Load and check the data and the tokenizer; the rank that is first does so before all others.

    Raises `DataError`, `ConfigError` or `CheckpointError` for what cannot be used.
    """
    lines: list[str] = []
    with explained_by(ranks), ranks.first_alone("loading the data"):
        task = build_task(config, Path(config.runs_dir) / CACHE_DIR, lines.append)
        stored = read_bank(config, task.train.problems, lines.append)
        if config.resume is None:
            _check_prompts(config, task)
    return Prepared(task=task, stored=stored, lines=tuple(lines))


def check_start(config: RunConfig) -> None:
    """Check once per process what runs of these settings need, whatever their seed."""
    _check_once(to_json(config.model_copy(update={"seed": 0, "resume": None})))


@lru_cache(maxsize=8)
def _check_once(settings: str) -> None:
    prepare(from_json(settings))


def checked_encoder(
    config: RunConfig, template: PromptTemplate
) -> tuple[Callable[[Problem], TokenIds], Context]:
    """The prompts of the model that the settings name, without its weights, and its context."""
    model = config.model
    if isinstance(model, TinyModelSettings):
        tokenizer, context = build_tokenizer(), Context(model.context_length)
    elif isinstance(model, HubModelSettings) and model.weights != "random":
        tokenizer, context = load_tokenizer(model.source, revision=model.revision)
    else:
        tokenizer, context = build_tokenizer(), Context(0)
    return prompt_encoder(tokenizer, template), context


def check_first_prompt(encode: Callable[[Problem], TokenIds], problems: Sequence[Problem]) -> None:
    """Raise the error of a chat template that cannot render a prompt."""
    encode(problems[0])


def _check_prompts(config: RunConfig, task: Task) -> None:
    encode, context = checked_encoder(config, task.template)
    check_first_prompt(encode, task.train.problems)
    if not context.length:
        return
    task.fitting_problems(encode, context, lambda line: None)
    for loaded in (task.validation, *task.benchmarks):
        require_room(evaluated_benchmark(loaded, config), encode, context)
