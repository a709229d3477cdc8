"""The samples of an evaluation in progress: sampled, graded, and handed over.

Samples are in memory only: the caller of `evaluate` stores those it receives. Nothing is sampled or estimated
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from atrium.base.records import Completion, EvaluatedSample, FinishReason, Problem, Verdict
from atrium.grading.grader import Grader


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an evaluation, in samples; `num_tokens` are those sampled by this call.

    `mean` is over the graded samples so far, including those finished before the call; None before the first.
    """

    num_sampled: int
    num_samples: int
    num_tokens: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Callbacks during an evaluation, and results of an earlier one.

    `on_finished` receives the samples of whole problems, K of each, as soon as all of a wave are graded;
    these may be passed as `finished`, by problem id, to a later call, which then samples the rest.
    `on_progress` is called after each sample.
    """

    on_progress: Callable[[Progress], None] | None = None
    on_finished: Callable[[Sequence[EvaluatedSample]], None] | None = None
    finished: Mapping[str, Sequence[EvaluatedSample]] = field(default_factory=dict)


class _Outcome(NamedTuple):
    """A completion and its pending verdict."""

    completion: Completion
    verdict: Future[Verdict]

    def is_correct(self, *, require_stop: bool) -> bool:
        """Return whether it counts; waits for the verdict."""
        stopped = self.completion.finish_reason is FinishReason.STOP
        return self.verdict.result().is_correct and (stopped or not require_stop)


@dataclass(kw_only=True, eq=False)
class Collection:
    """The samples of one evaluation of `problems`, `num_samples` each, by index."""

    problems: Sequence[Problem]
    num_samples: int
    require_stop: bool
    grader: Grader
    watch: Watch

    def __post_init__(self) -> None:
        self._outcomes: dict[int, dict[int, _Outcome]] = {}
        self._samples: dict[int, tuple[EvaluatedSample, ...]] = {
            index: tuple(self.watch.finished[problem.problem_id])
            for index, problem in enumerate(self.problems)
            if problem.problem_id in self.watch.finished
        }
        self._waiting: list[Sequence[int]] = []
        known = [sample for samples_K in self._samples.values() for sample in samples_K]
        self._num_sampled, self._num_tokens = len(known), 0
        self._ungraded: list[_Outcome] = []
        self._num_graded, self._num_correct = len(known), sum(sample.is_correct for sample in known)

    def add(self, index: int, sample_index: int, completion: Completion) -> bool:
        """Add one sample and report it; return whether it was the last of its problem."""
        problem = self.problems[index]
        verdict = self.grader.submit(completion.text, problem.answer, problem.judged_by)
        outcome = _Outcome(completion, verdict)
        of_problem = self._outcomes.setdefault(index, {})
        of_problem[sample_index] = outcome
        self._hand_over_graded()
        self._num_sampled += 1
        self._num_tokens += completion.num_tokens
        if self.watch.on_progress is not None:
            self.watch.on_progress(
                Progress(
                    num_sampled=self._num_sampled,
                    num_samples=len(self.problems) * self.num_samples,
                    num_tokens=self._num_tokens,
                    mean=self._mean_including(outcome),
                )
            )
        return len(of_problem) == self.num_samples

    def hand_over(self, indices: Sequence[int]) -> None:
        """Hand over these sampled problems together, now or as soon as they are graded."""
        self._waiting.append(indices)
        self._hand_over_graded()

    def wait(self) -> list[tuple[EvaluatedSample, ...]]:
        """Hand over the rest as it is graded; return all samples by problem."""
        for indices in self._waiting:
            self._finish(indices)
        self._waiting = []
        return [self._samples[index] for index in range(len(self.problems))]

    def _mean_including(self, outcome: _Outcome) -> float | None:
        """Return the share correct among the outcomes with verdicts; None before the first."""
        outcomes, self._ungraded = [*self._ungraded, outcome], []
        for one in outcomes:
            if one.verdict.done():
                self._num_graded += 1
                self._num_correct += one.is_correct(require_stop=self.require_stop)
            else:
                self._ungraded.append(one)
        return self._num_correct / self._num_graded if self._num_graded else None

    def _hand_over_graded(self) -> None:
        for indices in [waiting for waiting in self._waiting if self._is_graded(waiting)]:
            self._waiting.remove(indices)
            self._finish(indices)

    def _is_graded(self, indices: Iterable[int]) -> bool:
        return all(outcome.verdict.done() for index in indices for outcome in self._outcomes[index].values())

    def _finish(self, indices: Sequence[int]) -> None:
        for index in indices:
            outcomes = self._outcomes.pop(index)
            self._samples[index] = tuple(
                _evaluated(
                    self.problems[index],
                    sample_index,
                    outcomes[sample_index],
                    require_stop=self.require_stop,
                )
                for sample_index in range(self.num_samples)
            )
        if self.watch.on_finished is not None:
            self.watch.on_finished([sample for index in indices for sample in self._samples[index]])


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
