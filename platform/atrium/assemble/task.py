"""A run's task (its problems and prompt template), and functions that check the length of prompts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atrium.assemble.benchmarks import LoadedBenchmark, is_held_out, load_benchmarks, own_benchmark
from atrium.assemble.datasets import load_dataset
from atrium.assemble.graders import grader_version
from atrium.assemble.prompts import prompt_hashes
from atrium.assemble.references import Loading
from atrium.base.errors import DataError
from atrium.base.nested import mapping_at
from atrium.base.recorded import read_object
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
_RECORDED = {
    "data": ("", "the data"),
    "prompts": ("the prompts of ", "chat template, tokenizer and transformers"),
    "model": ("the files of model.source: ", "its files or the commit in model.revision"),
}
"""For each kind of recorded hash: how the error begins if the hash differs, and what to restore."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The problems of a run and the template of their prompts.

    The best checkpoint is chosen on `validation`, and results are reported on `benchmarks`. `origin` is the
    source of the training and validation problems. `max_new_tokens` is the maximum length of a completion.
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
        """Return the training problems whose prompts leave space for a completion within the context.

        The number of omitted problems is logged. Raises `DataError` if no problem is left, or if any
        problem is omitted because the rotary embedding limits the context.
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
        """The sources of all problems and the numbers of dropped problems, for the run's provenance."""
        return {
            "dataset": self.origin.as_record(),
            "benchmarks": {benchmark.name: benchmark.origin.as_record() for benchmark in self.benchmarks},
        }


def require_room(benchmark: Benchmark, encode: PromptEncoder, context: Context) -> Benchmark:
    """Return the benchmark unchanged, after a check of its prompts against the model's context.

    Raises `DataError` if a prompt and an answer of `max_new_tokens` tokens exceed the context.
    """
    wanted = benchmark.sampling.max_new_tokens
    fits = _fits(benchmark.problems, encode, context.length - wanted)
    for problem in benchmark.problems:
        if not fits(problem):
            raise DataError(
                f"benchmark {benchmark.name!r}: the prompt of problem {problem.problem_id!r} has "
                f"{len(encode(problem))} tokens, so evaluation.max_new_tokens={wanted} does not fit the "
                f"context of {context.length} tokens{context.reason}; lower evaluation.max_new_tokens, "
                "or remove the problem"
            )
    return benchmark


def _fits(problems: Sequence[Problem], encode: PromptEncoder, room: int) -> Callable[[Problem], bool]:
    """Return a function that tells whether a problem's prompt has at most `room` tokens.

    Short prompts are recognized by their number of bytes, without being encoded.
    """
    shortest = min(problems, key=lambda problem: len(problem.asked))
    # A token has at least one byte, so no prompt has more tokens than the shortest one plus its own bytes.
    num_safe_bytes = room - len(encode(shortest))
    return lambda problem: len(problem.asked.encode()) <= num_safe_bytes or len(encode(problem)) <= room


def longest_prompt(problems: Sequence[Problem], encode: PromptEncoder) -> int:
    """Return the number of tokens of the longest prompt, among the 64 prompts with the most bytes.

    Tokens are not proportional to bytes, but encoding all prompts of a large dataset would take minutes.
    """
    longest = heapq.nlargest(64, problems, key=lambda problem: len(problem.asked.encode()))
    return max(len(encode(problem)) for problem in longest)


def build_task(config: RunConfig, loading: Loading) -> Task:
    """Load and check the configured dataset and benchmarks, and return them as a task."""
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
    """Return the versions and hashes that identify a run's problems, prompts, grader and model."""
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
    """Raise `DataError` if a resumed run's problems, prompts or model differ from the recorded ones.

    Such a difference arises, for example, if a file was edited or an unpinned repository was updated.
    `recorded` is the path of `provenance.json`. Entries that an older record lacks are not compared. If all
    entries about the data, the prompts or the model are missing, the returned list contains a line for the
    log that says so; otherwise, the list is empty.
    """
    before, now = mapping_at(read_object(recorded)[0], "data"), asdict(data)
    _require_same_generator(before.get("dataset_revision"), data.dataset_revision)
    hashes = {
        "data": (_problem_hashes(before), _problem_hashes(now)),
        "prompts": (mapping_at(before, "prompt_hashes"), mapping_at(now, "prompt_hashes")),
        "model": (mapping_at(before, "model_source"), mapping_at(now, "model_source")),
    }
    missing = []
    for kind, (old, new) in hashes.items():
        what, cause = _RECORDED[kind]
        # No common name, for example if a commit was recorded and the source is now a local folder.
        is_other = bool(old and new) and not old.keys() & new.keys()
        if changed := [name for name, one in new.items() if is_other or old.get(name) not in (None, one)]:
            raise DataError(
                f"{what}{', '.join(changed)} changed since the run began; restore {cause} or start a new run"
            )
        if new and not old:
            missing.append(kind)
    if not missing:
        return []
    return [f"this run did not record its {' and '.join(missing)}; they are recorded from now on"]


def _problem_hashes(data: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the hash of each problem set in a record of `DataProvenance`, keyed by the set's name."""
    training = data.get("dataset_content_hash")
    return {_TRAINING_SET: training, **mapping_at(data, "benchmark_content_hashes")}


def _require_same_generator(before: str | None, now: str | None) -> None:
    """Raise `DataError` if the version of the package that generates the problems has changed."""
    package = f"{PACKAGE} "
    if before and now and before != now and before.startswith(package) and now.startswith(package):
        raise DataError(
            f"the run began with {before}, but {now} is installed, whose problems and scores may differ; "
            f"run `pip install {before.replace(' ', '==')}`"
        )


def evaluated_benchmark(loaded: LoadedBenchmark, config: RunConfig) -> Benchmark:
    """Combine a loaded benchmark with the run's evaluation settings: samples, sampling parameters, Pass@k."""
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
