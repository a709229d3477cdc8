"""Checks of the data, the tokenizer, and the length of prompts, before a run directory is created.

If a check fails, the command ends with an error and no run directory is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from atrium.assemble.bank import read_bank
from atrium.assemble.dry_run import try_grader, try_reward
from atrium.assemble.problem_sets import recorded_unreadable
from atrium.assemble.ranks import explained_by
from atrium.assemble.references import Loading
from atrium.assemble.task import Task, build_task, evaluated_benchmark, require_room
from atrium.base import plugins
from atrium.base.records import Problem
from atrium.config.compose import from_json, to_json
from atrium.config.schema import RunConfig
from atrium.config.tasks import ArithmeticDatasetConfig
from atrium.data.prompt_checks import check_prompt
from atrium.data.prompts import PromptEncoder, prompt_encoder
from atrium.data.sources import Log
from atrium.engines.stored_rollouts import StoredCompletion
from atrium.models.context import Context
from atrium.models.policy import load_tokenizer
from atrium.models.settings import TinyModelSettings
from atrium.models.tiny import build_tokenizer
from atrium.runs.layout import CACHE_DIR
from atrium.runs.listener import Listeners
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.train.ranks.ranks import SINGLE, Ranks
from atrium.views.live.terminal_display import displays


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The checked data of a run.

    `stored` are the completions of a run on stored rollouts, or None for other runs. `lines` are messages
    for the run's log.
    """

    task: Task
    stored: list[StoredCompletion] | None
    lines: tuple[str, ...]


def prepare(config: RunConfig, ranks: Ranks = SINGLE) -> RunData:
    """Load and check a run's data and reward, and the prompts of a new run.

    Rank 0 finishes before the other ranks start. Raises `DataError`, `ConfigError`, `RunFolderError`,
    `CheckpointError` or `PluginError` if a check fails, and `RankError` if another rank is lost.
    """
    lines: list[str] = []
    with explained_by(ranks), ranks.first_alone("loading the data"):
        with loading_for(config, config.resume, lines.append, is_shown=ranks.is_first) as loading:
            task = build_task(config, loading)
        stored = read_bank(config, task.train.problems, lines.append)
        with plugins.explained():
            if config.resume is None and isinstance(config.dataset, ArithmeticDatasetConfig):
                try_grader(config, task.train.problems[0])
            try_reward(config, task.train.problems[0])
        if config.resume is None:
            _check_prompts(config, task)
    return RunData(task=task, stored=stored, lines=tuple(lines))


@contextmanager
def loading_for(
    config: RunConfig, resume: Path | str | None, log: Log, *, is_shown: bool = True
) -> Iterator[Loading]:
    """Yield the `Loading` for a run's problems, with a progress bar if `is_shown`.

    `resume` is the directory of the run to resume, or None for a new run. A resumed run reuses its recorded
    check of reference answers instead of repeating it.
    """
    provenance = None if resume is None else RunFolder(Path(resume)).provenance_file
    shown = displays(config.tracking.progress, lambda line: None) if is_shown else ()
    listener = Listeners(shown)
    try:
        yield Loading(
            cache_dir=Path(config.runs_dir) / CACHE_DIR,
            log=log,
            listener=listener,
            unreadable={} if provenance is None else recorded_unreadable(provenance),
        )
    finally:
        listener.end(RunState.FINISHED)


def check_start(config: RunConfig) -> None:
    """Load and check a new run's data, reward and prompts, without creating a run directory.

    Runs that differ only in the seed are checked once per process. Raises the errors of `prepare`.
    """
    _check_once(to_json(config.model_copy(update={"seed": 0, "resume": None})))


@lru_cache(maxsize=8)
def _check_once(settings: str) -> None:
    prepare(from_json(settings))


def encoder_before_loading(config: RunConfig, problem: Problem) -> tuple[PromptEncoder, Context]:
    """Return the model's prompt encoder and context length, without loading its weights.

    The prompt of `problem` is rendered as a check. Raises `ConfigError` for an unsuitable chat template.
    """
    model = config.model
    if isinstance(model, TinyModelSettings):
        tokenizer, context = build_tokenizer(), Context(model.context_length)
    elif model.weights == "random":
        tokenizer, context = build_tokenizer(), Context(0)
    else:
        tokenizer, context = load_tokenizer(model.source, revision=model.revision)
    check_prompt(tokenizer, model.prompt, problem, model.date)
    return prompt_encoder(tokenizer, model.prompt, model.date), context


def _check_prompts(config: RunConfig, task: Task) -> None:
    encode, context = encoder_before_loading(config, task.train.problems[0])
    if not context.length:
        return
    task.fitting_problems(encode, context, lambda line: None)
    for loaded in (task.validation, *task.benchmarks):
        require_room(evaluated_benchmark(loaded, config), encode, context)
