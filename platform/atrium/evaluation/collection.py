"""Collection of a running evaluation's samples, which are graded and passed to the caller.

Samples are kept in memory only; the caller of `evaluate` may store the samples that it receives.
`evaluator` draws the samples, and `results` computes the scores.
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
class Watch:
    """Callbacks during an evaluation, and the samples of an interrupted evaluation.

    `on_progress(num_tokens, mean)` is called after each sample. `num_tokens` counts the tokens sampled so
    far by this call of `evaluate`. `mean` is the share of correct samples among all graded samples,
    including those in `finished`, or None if no sample has been graded.

    `on_finished` receives the samples of a wave (problems that are sampled together) as soon as all are
    graded: K samples per problem. A later call of `evaluate` may receive these samples as `finished`, by
    problem id. It then samples only the remaining problems.
    """

    on_progress: Callable[[int, float | None], None] | None = None
    on_finished: Callable[[Sequence[EvaluatedSample]], None] | None = None
    finished: Mapping[str, Sequence[EvaluatedSample]] = field(default_factory=dict)


class _Outcome(NamedTuple):
    """A completion and its pending verdict."""

    completion: Completion
    verdict: Future[Verdict]

    def is_correct(self, *, require_stop: bool) -> bool:
        """Wait for the verdict, and return whether the completion counts as correct.

        With `require_stop`, a truncated completion counts as wrong.
        """
        stopped = self.completion.finish_reason is FinishReason.STOP
        return self.verdict.result().is_correct and (stopped or not require_stop)

    def sample(self, problem: Problem, sample_index: int, *, require_stop: bool) -> EvaluatedSample:
        """Wait for the verdict, and return the graded completion as a sample of `problem`."""
        completion, verdict = self.completion, self.verdict.result()
        return EvaluatedSample(
            problem=problem,
            sample_index=sample_index,
            text=completion.text,
            verdict=verdict.kind,
            reason=verdict.reason,
            extracted=verdict.extracted,
            is_correct=self.is_correct(require_stop=require_stop),
            num_tokens=completion.num_tokens,
            finish_reason=completion.finish_reason,
            logprob_sum=float(completion.logprobs.sum(dtype=np.float64)),
        )


@dataclass(kw_only=True, eq=False)
class Collection:
    """The samples of one evaluation: `num_samples` for each problem in `problems`.

    Each sample is submitted to `grader` when it is added. With `require_stop`, truncated completions
    count as wrong. `watch` receives the progress and the graded samples.
    """

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
        self._num_tokens = 0
        self._ungraded: list[_Outcome] = []
        self._num_graded, self._num_correct = len(known), sum(sample.is_correct for sample in known)

    def add(self, index: int, sample_index: int, completion: Completion) -> bool:
        """Add a sample of problem `index`, and submit it for grading; return whether the problem is complete.

        A problem is complete when all its samples have been added, even if some are not graded yet.
        """
        problem = self.problems[index]
        verdict = self.grader.submit(completion.text, problem.answer, problem.judged_by)
        outcome = _Outcome(completion, verdict)
        of_problem = self._outcomes.setdefault(index, {})
        of_problem[sample_index] = outcome
        self._hand_over_graded()
        self._num_tokens += completion.num_tokens
        if self.watch.on_progress is not None:
            self.watch.on_progress(self._num_tokens, self._mean_including(outcome))
        return len(of_problem) == self.num_samples

    def hand_over(self, indices: Sequence[int]) -> None:
        """Pass the samples of the problems `indices` to `on_finished` together, as soon as all are graded."""
        self._waiting.append(indices)
        self._hand_over_graded()

    def wait(self) -> list[tuple[EvaluatedSample, ...]]:
        """Wait until all samples are graded and passed to `on_finished`; return them by problem."""
        for indices in self._waiting:
            self._finish(indices)
        self._waiting = []
        return [self._samples[index] for index in range(len(self.problems))]

    def _mean_including(self, outcome: _Outcome) -> float | None:
        """Return the share of correct samples among all graded ones, including `outcome` if it is graded.

        Returns None if no sample is graded.
        """
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
                outcomes[number].sample(self.problems[index], number, require_stop=self.require_stop)
                for number in range(self.num_samples)
            )
        if self.watch.on_finished is not None:
            self.watch.on_finished([sample for index in indices for sample in self._samples[index]])
