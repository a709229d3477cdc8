"""Benchmark times policy to per-problem outcomes: sample, grade, estimate.

The same code evaluates inside training and from the command line. It holds no policy and writes nothing:
an engine samples, a grader grades while the engine goes on sampling, and the caller records what comes
back. A sample's seed depends on the benchmark, the problem and the sample's index only, so evaluating
more often, or more problems, changes no other random choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from atrium.errors import ConfigError, DataError, EngineError
from atrium.evaluation.results import Results, single_numbers, summarize
from atrium.grading.grader import Grader
from atrium.metrics import evaluation_name
from atrium.records import (
    Completion,
    FinishReason,
    Problem,
    TokenIds,
    Verdict,
)
from atrium.rollout.engine import Engine, GenerationRequest, SamplingParams
from atrium.seeding import derive_seed
from atrium.tracking.tracker import EvaluatedSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What is evaluated, and how it is sampled.

    `require_stop` counts a truncated completion as wrong whatever its answer. `pass_at` lists the k of
    Pass@k, each at most `num_samples`; None stands for the powers of two up to it, and itself.
    `breakdown_by` names the metadata keys by which results are also told apart.

    Raises `ConfigError` for a k above `num_samples`, `DataError` without problems or with a repeated
    `problem_id`.
    """

    name: str
    problems: tuple[Problem, ...]
    num_samples: int
    sampling: SamplingParams
    require_stop: bool
    pass_at: tuple[int, ...] | None = None
    breakdown_by: tuple[str, ...] = ("level", "subject")

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ConfigError(f"benchmark {self.name!r}: num_samples is {self.num_samples}; it is at least 1")
        for k in self.pass_at or ():
            if not 1 <= k <= self.num_samples:
                raise ConfigError(
                    f"benchmark {self.name!r}: Pass@{k} needs 1 <= k <= num_samples, and num_samples "
                    f"is {self.num_samples}; set num_samples to {max(k, 1)} or leave this k out"
                )
        if not self.problems:
            raise DataError(f"benchmark {self.name!r} has no problems; check its source and filters")
        [(problem_id, count)] = Counter(p.problem_id for p in self.problems).most_common(1)
        if count > 1:
            raise DataError(
                f"benchmark {self.name!r}: problem_id {problem_id!r} occurs {count} times; "
                "each problem needs its own"
            )

    @property
    def reported_pass_at(self) -> tuple[int, ...]:
        """The k of Pass@k that results hold, ascending and without repeats."""
        if self.pass_at is not None:
            return tuple(sorted(set(self.pass_at)))
        powers = {2**power for power in range(self.num_samples.bit_length())}
        return tuple(sorted(powers | {self.num_samples}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an evaluation is; `mean` is over the graded samples so far, None before the first."""

    num_problems_sampled: int
    num_problems: int
    num_tokens: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcome of one benchmark: its samples by (problem, sample index), and their summary."""

    benchmark: str
    samples: tuple[EvaluatedSample, ...]
    results: Results

    @property
    def metrics(self) -> dict[str, float]:
        """The single numbers under their flat names, e.g. `evaluation/aime24/mean_at_8`."""
        return {
            evaluation_name(self.benchmark, name): value
            for name, value in single_numbers(self.results).items()
        }


def evaluate(
    benchmark: Benchmark,
    *,
    engine: Engine,
    grader: Grader,
    encode: Callable[[Problem], TokenIds],
    seed: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evaluation:
    """Sample `num_samples` completions of every problem, grade them, and estimate Mean@K and Pass@k.

    Parameters
    ----------
    encode
        A problem's prompt as token ids.
    seed
        The run's seed; evaluations with equal seeds draw equal samples from equal weights.
    on_progress
        Called after each problem's completions are sampled.

    Raises
    ------
    EngineError
        When the engine does not return each problem's completions exactly once.
    """
    outcomes: dict[int, list[_Outcome]] = {}
    mean = _RunningMean(require_stop=benchmark.require_stop)
    num_tokens = 0
    for index, completions in _sampled(benchmark, engine=engine, encode=encode, seed=seed):
        gold = benchmark.problems[index].answer
        outcomes[index] = [_Outcome(c, grader.submit(c.text, gold)) for c in completions]
        num_tokens += sum(completion.num_tokens for completion in completions)
        if on_progress is not None:
            on_progress(
                Progress(
                    num_problems_sampled=len(outcomes),
                    num_problems=len(benchmark.problems),
                    num_tokens=num_tokens,
                    mean=mean.including(outcomes[index]),
                )
            )
    samples = tuple(
        _evaluated(problem, sample_index, outcome, require_stop=benchmark.require_stop)
        for index, problem in enumerate(benchmark.problems)
        for sample_index, outcome in enumerate(outcomes[index])
    )
    results = summarize(
        samples,
        num_samples=benchmark.num_samples,
        pass_at=benchmark.reported_pass_at,
        breakdown_by=benchmark.breakdown_by,
    )
    return Evaluation(benchmark=benchmark.name, samples=samples, results=results)


def _sampled(
    benchmark: Benchmark,
    *,
    engine: Engine,
    encode: Callable[[Problem], TokenIds],
    seed: int,
) -> Iterator[tuple[int, tuple[Completion, ...]]]:
    """Each problem's index with its completions, as they finish; checks what the engine promises."""
    requests = [
        GenerationRequest(
            prompt_token_ids=encode(problem),
            sample_seeds=tuple(
                derive_seed(seed, "evaluation", benchmark.name, problem.problem_id, sample_index)
                for sample_index in range(benchmark.num_samples)
            ),
        )
        for problem in benchmark.problems
    ]
    missing = set(range(len(requests)))
    for generation in engine.generate(requests, benchmark.sampling):
        index, num_completions = generation.request_index, len(generation.completions)
        if index not in missing or num_completions != benchmark.num_samples:
            raise EngineError(
                f"the engine returned {num_completions} completions for request {index} of "
                f"benchmark {benchmark.name!r}; {benchmark.num_samples} are due, once"
            )
        missing.remove(index)
        yield index, generation.completions
    if missing:
        raise EngineError(
            f"the engine returned nothing for {len(missing)} of {len(requests)} requests of "
            f"benchmark {benchmark.name!r}"
        )


class _Outcome(NamedTuple):
    """A completion and the verdict that is on its way."""

    completion: Completion
    verdict: Future[Verdict]

    def is_correct(self, *, require_stop: bool) -> bool:
        """Whether it counts; waits for the verdict."""
        stopped = self.completion.finish_reason is FinishReason.STOP
        return self.verdict.result().is_correct and (stopped or not require_stop)


class _RunningMean:
    """The share correct among the outcomes whose verdicts have arrived; never waits for one."""

    def __init__(self, *, require_stop: bool) -> None:
        self._require_stop = require_stop
        self._pending: list[_Outcome] = []
        self._num_graded = 0
        self._num_correct = 0

    def including(self, outcomes: Sequence[_Outcome]) -> float | None:
        """Take in more outcomes and return the mean, None before the first verdict."""
        waiting = []
        for outcome in (*self._pending, *outcomes):
            if not outcome.verdict.done():
                waiting.append(outcome)
                continue
            self._num_graded += 1
            self._num_correct += outcome.is_correct(require_stop=self._require_stop)
        self._pending = waiting
        return self._num_correct / self._num_graded if self._num_graded else None


def _evaluated(
    problem: Problem, sample_index: int, outcome: _Outcome, *, require_stop: bool
) -> EvaluatedSample:
    completion, verdict = outcome.completion, outcome.verdict.result()
    return EvaluatedSample(
        problem=problem,
        sample_index=sample_index,
        text=completion.text,
        verdict=verdict.kind,
        reason=verdict.reason,
        extracted=verdict.extracted,
        is_correct=outcome.is_correct(require_stop=require_stop),
        num_tokens=completion.num_tokens,
        finish_reason=completion.finish_reason,
        logprob_sum=float(completion.logprobs.sum(dtype=np.float64)),
    )
