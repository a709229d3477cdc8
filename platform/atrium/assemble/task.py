"""From configuration to the task: problems and their splits, prompts, graders, benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.assemble.benchmarks import LoadedBenchmark, is_held_out, load_benchmarks, own_benchmark
from atrium.assemble.datasets import load_dataset
from atrium.assemble.graders import grader_version
from atrium.assemble.prompts import prompt_hashes
from atrium.assemble.references import Loading
from atrium.base.errors import DataError
from atrium.base.plain_files import read_plain
from atrium.base.records import Problem
from atrium.config.schema import RunConfig
from atrium.data.problem_sets import Origin
from atrium.data.problems import Dataset
from atrium.data.prompts import PromptEncoder, PromptTemplate
from atrium.engines.declaration import Sampling
from atrium.engines.engine import SamplingParams
from atrium.evaluation.evaluator import Benchmark
from atrium.grading.procedural import PACKAGE
from atrium.models.context import Context
from atrium.runs.provenance import DataProvenance

_TRAINING_SET = "the training set"


@dataclass(frozen=True, kw_only=True)
class Task:
    """The problems of a run, and their prompts.

    The best checkpoint is chosen on `validation`; results are reported on `benchmarks`. `max_new_tokens` is
    the length limit of a completion.
    """

    train: Dataset
    origin: Origin
    validation: LoadedBenchmark
    benchmarks: tuple[LoadedBenchmark, ...]
    template: PromptTemplate
    max_new_tokens: int

    def fitting_problems(
        self, encode: PromptEncoder, context: Context, log: Callable[[str], None]
    ) -> tuple[Problem, ...]:
        """Return the training problems whose prompts leave room for a completion; log the number of others.

        Raises `DataError` if none is left, and, if the rotary embedding sets the context, for any without
        room.
        """
        problems = self.train.problems
        fits = _fits(problems, encode, context.length - self.max_new_tokens)
        fitting = tuple(problem for problem in problems if fits(problem))
        num_long = len(problems) - len(fitting)
        what = (
            f"leave no space for {self.max_new_tokens} more tokens in a context of "
            f"{context.length}{context.reason}"
        )
        if not fitting or (num_long and context.rope_type):
            which = f"{num_long} of {len(problems)}" if fitting else "all"
            raise DataError(
                f"dataset '{self.train.name}': {which} prompts {what}; lower rollout.max_new_tokens"
            )
        if num_long:
            log(f"{self.train.name}: {num_long} of {len(problems)} prompts {what} and are left out")
        return fitting

    @property
    def origins(self) -> dict[str, object]:
        """Return the sources of all problems, and the fate of their rows, for the record."""
        return {
            "dataset": self.origin.as_record(),
            "benchmarks": {benchmark.name: benchmark.origin.as_record() for benchmark in self.benchmarks},
        }


def require_room(benchmark: Benchmark, encode: PromptEncoder, context: Context) -> Benchmark:
    """Return the benchmark; `DataError` names the first problem without room for an answer."""
    wanted = benchmark.sampling.max_new_tokens
    fits = _fits(benchmark.problems, encode, context.length - wanted)
    for problem in benchmark.problems:
        if not fits(problem):
            raise DataError(
                f"benchmark {benchmark.name!r}: the prompt of problem {problem.problem_id!r} has "
                f"{len(encode(problem))} tokens, which with evaluation.max_new_tokens={wanted} do not fit "
                f"into the context of {context.length} tokens{context.reason}; lower "
                "evaluation.max_new_tokens, or remove it"
            )
    return benchmark


def _fits(problems: Sequence[Problem], encode: PromptEncoder, room: int) -> Callable[[Problem], bool]:
    """Return a test for prompts of at most `room` tokens; only long texts are encoded for it."""
    shortest = min(problems, key=lambda problem: len(problem.asked))
    # A token is at least a byte, so no prompt is longer than this one and its own text together.
    num_safe_bytes = room - len(encode(shortest))
    return lambda problem: len(problem.asked.encode()) <= num_safe_bytes or len(encode(problem)) <= room


def build_task(config: RunConfig, loading: Loading) -> Task:
    """Build the configured task, with its problems fetched and checked."""
    benchmarks: tuple[LoadedBenchmark, ...] = ()
    if not is_held_out(config.benchmark):
        benchmarks = load_benchmarks(
            config.benchmark,
            config.dataset,
            verifier=config.grader,
            loading=loading,
        )
    splits, origin = load_dataset(
        config.dataset,
        verifier=config.grader,
        benchmarks={benchmark.name: benchmark.problems for benchmark in benchmarks},
        loading=loading,
    )
    if splits.test is not None and is_held_out(config.benchmark):
        benchmarks = (own_benchmark(splits.test, config.dataset, origin),)
    return Task(
        train=splits.train,
        origin=origin,
        validation=own_benchmark(splits.validation, config.dataset, origin),
        benchmarks=benchmarks,
        template=config.model.prompt,
        max_new_tokens=config.rollout.max_new_tokens,
    )


def data_provenance(
    config: RunConfig, task: Task, encode: PromptEncoder, model_source: Mapping[str, str] | None
) -> DataProvenance:
    """Return the names and digests that identify the data, prompts, grader and model of a run."""
    judged = (task.validation, *task.benchmarks)
    sets = {_TRAINING_SET: task.train.problems, **{one.name: one.problems for one in judged}}
    return DataProvenance(
        dataset_revision=task.origin.revision,
        dataset_content_hash=task.train.content_hash,
        benchmark_content_hashes={loaded.name: loaded.dataset.content_hash for loaded in judged},
        prompt_template_hash=task.template.content_hash,
        grader_version=grader_version(config.grader),
        prompt_hashes=prompt_hashes(sets, encode),
        model_source=model_source,
    )


def require_same_data(recorded: Path, data: DataProvenance) -> list[str]:
    """Raise `DataError` if problems, prompts or model differ from those in `provenance.json`.

    A resumed run must use the same data: a file may have been edited, or an unpinned repository updated.
    Returns lines on missing entries in an older run's record.
    """
    try:
        before = json.loads(read_plain(recorded))["data"]
        hashes = {_TRAINING_SET: before["dataset_content_hash"], **before["benchmark_content_hashes"]}
        prompts, source = before.get("prompt_hashes") or {}, before.get("model_source") or {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        before, hashes, prompts, source = {}, {}, {}, {}  # from before this was recorded, or cut off
    _require_same_generator(before.get("dataset_revision"), data.dataset_revision)
    now = {_TRAINING_SET: data.dataset_content_hash, **(data.benchmark_content_hashes or {})}
    comparisons = (
        ("", hashes, now, "the data"),
        ("the prompts of ", prompts, data.prompt_hashes, "chat template, tokenizer and transformers"),
        ("of model.source: the ", source, data.model_source, "its files, or the commit in model.revision,"),
    )
    for what, old, new, cause in comparisons:
        new = new or {}
        is_other = bool(old and new) and not old.keys() & new.keys()  # a commit, and now a folder's files
        if changed := [name for name, one in new.items() if is_other or old.get(name, one) != one]:
            raise DataError(
                f"{what}{', '.join(changed)} changed since this run began; restore {cause}, or start a new "
                "run"
            )
    missing = [
        name
        for name, old, new in (("prompts", prompts, data.prompt_hashes), ("model", source, data.model_source))
        if new and not old
    ]
    return (
        [f"this run did not record its {' and '.join(missing)}; they are recorded from now on"]
        if missing
        else []
    )


def _require_same_generator(before: str | None, now: str | None) -> None:
    """Raise `DataError` if another version of a package generates the problems than when the run began."""
    package = f"{PACKAGE} "
    if before and now and before != now and before.startswith(package) and now.startswith(package):
        raise DataError(
            f"this run began with {before}, but {now} is installed, whose problems and scores may differ; "
            f"pip install {before.replace(' ', '==')}"
        )


def evaluated_benchmark(loaded: LoadedBenchmark, config: RunConfig) -> Benchmark:
    """Return a benchmark with the sampling settings of its answers."""
    evaluation = config.evaluation
    return Benchmark(
        name=loaded.name,
        problems=loaded.problems,
        num_samples=evaluation.num_samples,
        sampling=SamplingParams(
            **evaluation.model_dump(include=set(Sampling.model_fields)),
            stop=config.model.prompt.stop,
        ),
        require_stop=loaded.require_stop,
        pass_at=evaluation.pass_at,
    )
