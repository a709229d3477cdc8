"""What a run evaluates while it trains, on however many ranks, and the evaluation before training.

With several ranks the problems are dealt, each engine answers its share, and rank 0 sums up. Of the ranks
that share an engine, one grades its answers. A sample's seed depends on its problem and index alone, so who
answers changes nothing but the last bits of what an engine computes in batches.

The evaluation before training is made once for all runs that begin from one policy. Its samples are cached
under a hash of everything that they depend on (`evaluation_key`). A cached one is summarised and recorded as
if it had just been sampled. The runs of a sweep share it, and so do all seeds: it is one draw, so nothing
about its noise follows from how a gain over it varies between seeds.
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
    """A benchmark, the grader of the answers to it, and that grader's settings."""

    benchmark: Benchmark
    grader: Grader
    verifier: Verifier


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What a run evaluates: validation problems each time, test problems before and after training.

    The best checkpoint is chosen on validation, so results on test stay clean of that choice. Problems are
    dealt over the run's ranks, each of which learns the outcome. Before training all seeds share their draws;
    afterwards those are keyed by the run's seed too, so that the noise of sampling is independent over seeds.
    Samples from before training are cached, where they depend on the benchmark and on `key`, which is the
    `policy_key`.
    """

    run: Run
    validation: JudgedBenchmark
    tests: tuple[JudgedBenchmark, ...]
    draws: Draws
    key: str

    def __call__(self, step: int, *, final: bool) -> float | None:
        """Evaluate and record; Mean@K on the validation problems."""
        value = self._evaluate(self.validation, step)
        if final:
            for test in self.tests:
                self._evaluate(test, step)
        return value

    def _evaluate(self, judged: JudgedBenchmark, step: int) -> float:
        """Evaluate and record; Mean@K, on every rank."""
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
        """The outcome on the rank that records it: cached, or made and cached."""
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
    """The cached samples, nothing where there are none or the file is damaged."""
    if not path.is_file():
        return {}
    try:
        return EvaluationParts(path, step=0).read(benchmark.problems, num_samples=benchmark.num_samples)
    except RunFolderError:
        path.unlink(missing_ok=True)
        return {}


def evaluated_together(benchmark: Benchmark, draws: Draws, grader: Grader, ranks: Ranks) -> Evaluation | None:
    """The evaluation of the whole benchmark on rank 0, which all ranks make together; None on the others.

    Ranks that share an engine have to ask it alike, and one of them grades.
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
