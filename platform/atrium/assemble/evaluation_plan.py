"""The evaluations of a training run, on one or several ranks, and the evaluation before training.

With several ranks, the problems are distributed, each engine answers its share, and rank 0 combines the
results. If ranks share an engine, one of them grades the engine's answers. A sample's random seed does not
depend on the rank, so the distribution changes at most the last bits of batched computations.

Runs that start from the same policy share one evaluation before training. Its samples are cached under a hash
of everything that affects them (`evaluation_key`). A cached evaluation is summarized and recorded like a new
one. Runs with different seeds share it too, so its sampling noise does not add to the variation of gains
between seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from atrium.assemble.evaluation_key import evaluation_key
from atrium.assemble.run import Run
from atrium.base.atomic import explained
from atrium.base.errors import RunFolderError
from atrium.base.records import BenchmarkResult, EvaluatedSample
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Draws, evaluate, sample_only
from atrium.grading.grader import Grader
from atrium.grading.verifiers import Verifier
from atrium.runs.evaluation_parts import EvaluationParts, Finished
from atrium.runs.sample_files import answer_columns, sample_of, write_evaluation
from atrium.train.ranks.ranks import Ranks


class JudgedBenchmark(NamedTuple):
    """A benchmark, the grader of its answers, and the verifier that the grader uses."""

    benchmark: Benchmark
    grader: Grader
    verifier: Verifier


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The evaluations of a run: on validation problems at intervals, and on test problems at the end.

    With `evaluation.tests_before`, test problems are also evaluated before training. The best checkpoint
    is chosen on validation problems, so test results are not biased by that choice. Problems are
    distributed over the run's ranks, and every rank receives the score. Before training, the samples are
    the same for all seeds and are cached by benchmark and `key` (see `policy_key`). Later samples also
    depend on the run's seed, so their noise is independent between seeds.
    """

    run: Run
    validation: JudgedBenchmark
    tests: tuple[JudgedBenchmark, ...]
    draws: Draws
    key: str

    def __call__(self, step: int, *, final: bool) -> float | None:
        """Evaluate the policy at `step` and record the results; return Mean@K on the validation problems.

        `final` is true for the evaluation at step 0 and for the last one. Test problems are evaluated only
        then, and at step 0 only if `evaluation.tests_before` is set.
        """
        value = self._evaluate(self.validation, step)
        if final and (step > 0 or self.run.config.evaluation.tests_before):
            for test in self.tests:
                self._evaluate(test, step)
        return value

    def _evaluate(self, judged: JudgedBenchmark, step: int) -> float:
        """Evaluate one benchmark and record the results; return Mean@K on every rank."""
        run = self.run
        if step == 0:
            outcome = self._before_training(judged)
        else:
            outcome = evaluated_together(judged.benchmark, self.draws, judged.grader, run.ranks, step=step)
        if outcome is not None:
            run.listener.evaluation(outcome)
        return float(run.ranks.from_first(None if outcome is None else outcome.results["mean_at_k"]))

    def _before_training(self, judged: JudgedBenchmark) -> BenchmarkResult | None:
        """Return the evaluation before training on rank 0, and None on other ranks.

        The result is read from the cache. If it is not cached, it is computed and added to the cache.
        """
        benchmark, grader, verifier = judged
        draws, ranks = replace(self.draws, run_seed=None), self.run.ranks
        name = evaluation_key(self.key, benchmark, verifier, draws.encode, draws.seed)
        path = self.run.folder.cache_dir / "first_evaluations" / f"{name}.parquet"
        finished = _recalled(path, benchmark) if ranks.is_first else {}
        if ranks.from_first(bool(finished)):
            return evaluate(benchmark, draws, grader, Watch(finished=finished)) if ranks.is_first else None
        outcome = evaluated_together(benchmark, draws, grader, ranks)
        if outcome is not None:
            with explained("cache the first evaluation in", path.parent):
                write_evaluation(path, 0, outcome.samples)
        return outcome


def _recalled(path: Path, benchmark: Benchmark) -> Finished:
    """Return the cached samples of an evaluation, keyed by problem id.

    The result is empty if the file is missing or damaged. A damaged file is deleted.
    """
    if not path.is_file():
        return {}
    try:
        return EvaluationParts(path, step=0).read(benchmark.problems, num_samples=benchmark.num_samples)
    except RunFolderError:
        path.unlink(missing_ok=True)
        return {}


def evaluated_together(
    benchmark: Benchmark, draws: Draws, grader: Grader, ranks: Ranks, *, step: int = 0
) -> BenchmarkResult | None:
    """Evaluate a benchmark on all ranks; return the result on rank 0, and None on other ranks.

    The problems are divided over the ranks. Ranks that share an engine send the same requests to it, and
    one of these ranks grades the answers.
    """
    if ranks.is_alone:
        return evaluate(benchmark, draws, grader, step=step)
    share = ranks.share(benchmark.problems)
    samples: Sequence[EvaluatedSample] = ()
    if share and ranks.leads_engine:
        samples = evaluate(replace(benchmark, problems=tuple(share)), draws, grader).samples
    elif share:
        sample_only(replace(benchmark, problems=tuple(share)), draws)
    found = ranks.gather([{"problem": one.problem.problem_id, **answer_columns(one)} for one in samples])
    if not ranks.is_first:
        return None
    problems = {problem.problem_id: problem for problem in benchmark.problems}
    finished: dict[str, list[EvaluatedSample]] = {name: [] for name in problems}
    for record in (record for records in found for record in records):
        finished[record["problem"]].append(sample_of(record, problems[record["problem"]]))
    return evaluate(benchmark, draws, grader, Watch(finished=finished), step=step)
