"""What the loop reports, and where it goes: the run folder and the terminal; and what it evaluates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from atrium.assemble.shared_evaluation import evaluated_together
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Evaluation, WaveSize, evaluate, sample_only
from atrium.grading.grader import Grader
from atrium.records import EvaluatedSample, Problem, RatioHistogram, RolloutGroup, TokenIds, TokenTrace
from atrium.rollout.engine import Engine
from atrium.tracking.diagnosis import Notes
from atrium.tracking.terminal import ProgressDisplay
from atrium.tracking.tracker import Tracker
from atrium.train.ranks.ranks import Ranks


class RunTracker(Tracker, Protocol):
    """A tracker that is told when training begins."""

    def begin(self, *, step: int, num_steps: int) -> None:
        """Training goes on after `step`."""
        ...


@dataclass(frozen=True)
class Recorder:
    """A tracker that also shows what it records."""

    tracker: RunTracker
    display: ProgressDisplay
    notes: Notes = field(default_factory=Notes, kw_only=True)

    def begin(self, title: str, *, step: int, num_steps: int) -> None:
        """Training goes on after `step`."""
        self.tracker.begin(step=step, num_steps=num_steps)
        self.display.begin(title, step=step, num_steps=num_steps)

    def wants_rollouts(self, step: int) -> bool:
        """Whether this step's rollouts are recorded."""
        return self.tracker.wants_rollouts(step)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and show the metrics of one step, and say what goes wrong."""
        self.tracker.log_metrics(step, metrics)
        self.display.step(step, metrics)
        for note in self.notes.after(step, metrics):
            self.display.message(f"note: {note}")

    def log_ratios(self, step: int, histogram: RatioHistogram) -> None:
        """Record how the ratios of one step are distributed."""
        self.tracker.log_ratios(step, histogram)

    def log_rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        traces: Mapping[tuple[str, int], TokenTrace],
    ) -> None:
        """Record a step's rollouts."""
        self.tracker.log_rollouts(step, groups, traces)

    def log_evaluation(
        self,
        *,
        step: int,
        benchmark: str,
        samples: Sequence[EvaluatedSample],
        results: Mapping[str, object],
    ) -> None:
        """Record and show one evaluation."""
        self.tracker.log_evaluation(step=step, benchmark=benchmark, samples=samples, results=results)
        self.display.evaluation(step=step, benchmark=benchmark, results=results)

    def sync(self) -> None:
        """Make sure that everything recorded is on the disk."""
        self.tracker.sync()


class JudgedBenchmark(NamedTuple):
    """A benchmark and what grades the answers to it."""

    benchmark: Benchmark
    grader: Grader


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What a run evaluates: validation problems each time, test problems before and after training.

    The best checkpoint is chosen on validation, so results on test stay clean of that choice. Problems are
    dealt over the `ranks`, each of which learns the outcome. Before training all seeds share their draws;
    afterwards those are keyed by `run_seed` too, so that the noise of sampling is independent over seeds.
    """

    validation: JudgedBenchmark
    tests: tuple[JudgedBenchmark, ...]
    engine: Engine
    encode: Callable[[Problem], TokenIds]
    seed: int
    run_seed: int
    wave_size: WaveSize | None
    recorder: Recorder
    ranks: Ranks = Ranks()

    def __call__(self, step: int, *, final: bool) -> float | None:
        """Evaluate and record; Mean@K on the validation problems."""
        value = self._evaluate(self.validation, step)
        if final:
            for test in self.tests:
                self._evaluate(test, step)
        return value

    def _evaluate(self, judged: JudgedBenchmark, step: int) -> float:
        return self._recorded(judged, step, self._sampled(judged, step))

    def _sampled(self, judged: JudgedBenchmark, step: int) -> Evaluation | None:
        """The outcome, on the rank that records it."""
        return evaluated_together(
            judged.benchmark,
            lambda part, watch: self._outcome(part, judged.grader, watch, step),
            lambda part: sample_only(
                part,
                engine=self.engine,
                encode=self.encode,
                seed=self.seed,
                run_seed=self._run_seed(step),
                wave_size=self.wave_size,
            ),
            self.ranks,
        )

    def _outcome(self, benchmark: Benchmark, grader: Grader, watch: Watch, step: int) -> Evaluation:
        return evaluate(
            benchmark,
            engine=self.engine,
            grader=grader,
            encode=self.encode,
            seed=self.seed,
            run_seed=self._run_seed(step),
            wave_size=self.wave_size,
            watch=watch,
        )

    def _run_seed(self, step: int) -> int | None:
        """What keys the draws besides `seed`; nothing before training, where all runs are one policy."""
        return self.run_seed if step > 0 else None

    def _recorded(self, judged: JudgedBenchmark, step: int, outcome: Evaluation | None) -> float:
        """Record the outcome where it is; Mean@K everywhere."""
        value = None
        if outcome is not None:
            self.recorder.log_evaluation(
                step=step, benchmark=judged.benchmark.name, samples=outcome.samples, results=outcome.results
            )
            value = outcome.results["mean_at_k"]
        return float(self.ranks.from_first(value))
