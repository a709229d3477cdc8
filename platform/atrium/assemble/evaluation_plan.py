"""The evaluations of a training run, on one or several ranks, and the evaluation before training.

With several ranks the problems are distributed, each engine answers its share, and rank 0 combines the
results. Of the ranks that share an engine, one grades its answers. A sample's seed depends only on its
problem and index, so the distribution changes at most the last bits of batched computations.

The evaluation before training is made once for all runs that start from one policy. Its samples are cached
under a hash of everything that they depend on (`evaluation_key`). A cached evaluation is summarized and
recorded as if it had just been sampled. The runs of a sweep share it, and so do all seeds: it is a single
draw, so the variation of a gain between seeds says nothing about its noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from atrium.assemble.evaluation_key import evaluation_key
from atrium.assemble.run import Run
from atrium.base.atomic import explained
from atrium.base.errors import RunFolderError
from atrium.base.records import BenchmarkResult, EvaluatedSample
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Draws, Evaluation, evaluate, sample_only
from atrium.grading.grader import Grader
from atrium.grading.verifiers import Verifier
from atrium.runs.evaluation_parts import EvaluationParts, Finished
from atrium.runs.sample_files import answer_columns, sample_of, write_evaluation
from atrium.train.ranks.ranks import Ranks


class JudgedBenchmark(NamedTuple):
    """A benchmark, the grader of its answers, and that grader's settings."""

    benchmark: Benchmark
    grader: Grader
    verifier: Verifier


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The evaluations of a run: validation problems regularly, test problems before and after training.

    The best checkpoint is chosen on validation problems, so test results are not biased by that choice.
    Problems are distributed over the run's ranks, each of which receives the outcome. Before training all
    seeds share their draws; afterwards these are also keyed by the run's seed, so that sampling noise is
    independent between seeds. Samples from before training are cached by the benchmark and by `key`, which is
    the `policy_key`.
    """

    run: Run
    validation: JudgedBenchmark
    tests: tuple[JudgedBenchmark, ...]
    draws: Draws
    key: str

    def __call__(self, step: int, *, final: bool) -> float | None:
        """Evaluate and record; return Mean@K on the validation problems."""
        value = self._evaluate(self.validation, step)
        if final:
            for test in self.tests:
                self._evaluate(test, step)
        return value

    def _evaluate(self, judged: JudgedBenchmark, step: int) -> float:
        """Evaluate and record; return Mean@K, on every rank."""
        run = self.run
        if step == 0:
            outcome = self._before_training(judged)
        else:
            outcome = evaluated_together(judged.benchmark, self.draws, judged.grader, run.ranks)
        if outcome is not None:
            run.listener.evaluation(
                BenchmarkResult(
                    step=step,
                    benchmark=judged.benchmark.name,
                    samples=outcome.samples,
                    results=outcome.results,
                )
            )
        return float(run.ranks.from_first(None if outcome is None else outcome.results["mean_at_k"]))

    def _before_training(self, judged: JudgedBenchmark) -> Evaluation | None:
        """Return the outcome on the rank that records it: cached, or computed and cached."""
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
    """Return the cached samples; none if there are none or the file is damaged."""
    if not path.is_file():
        return {}
    try:
        return EvaluationParts(path, step=0).read(benchmark.problems, num_samples=benchmark.num_samples)
    except RunFolderError:
        path.unlink(missing_ok=True)
        return {}


def evaluated_together(benchmark: Benchmark, draws: Draws, grader: Grader, ranks: Ranks) -> Evaluation | None:
    """Evaluate the whole benchmark on all ranks together; the result on rank 0, None on the others.

    Ranks that share an engine must send it the same requests, and one of them grades.
    """
    if ranks.is_alone:
        return evaluate(benchmark, draws, grader)
    share = ranks.share(benchmark.problems)
    samples: tuple[EvaluatedSample, ...] = ()
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
    return evaluate(benchmark, draws, grader, Watch(finished=finished))
