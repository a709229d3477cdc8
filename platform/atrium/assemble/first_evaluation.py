"""The evaluation before training, made once for all runs that begin from one policy.

Its samples are cached under a hash of everything that they depend on: the weights, the problems and their
prompts, how answers are sampled and graded, the seed of evaluations, the software. A cached one is
summarised and recorded as if it had just been sampled. The runs of a sweep share it, and so do all seeds:
it is one draw, so nothing about its noise follows from how a gain over it varies between seeds.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from atrium.assemble.recording import EvaluationPlan, JudgedBenchmark
from atrium.config.schema import RunConfig
from atrium.errors import RunFolderError
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark
from atrium.models.policy import Policy
from atrium.models.shards import whole
from atrium.tracking.atomic import explained
from atrium.tracking.evaluation_parts import EvaluationParts, Finished
from atrium.tracking.sample_files import write_evaluation

FORMAT_VERSION = 1
_SECTIONS = ("grader", "benchmark", "evaluation", "compute")


@dataclass(frozen=True, kw_only=True)
class SharedFirstEvaluation(EvaluationPlan):
    """Evaluates as `EvaluationPlan` does; before training, what is cached is not sampled again.

    `key` stands for all but the benchmark.
    """

    cache_dir: Path
    key: str

    def _evaluate(self, judged: JudgedBenchmark, step: int) -> float:
        if step > 0:
            return super()._evaluate(judged, step)
        benchmark, grader = judged
        path = self.cache_dir / "first_evaluations" / f"{self._hash(benchmark)}.parquet"
        finished = _recalled(path, benchmark) if self.ranks.is_first else {}
        if self.ranks.from_first(bool(finished)):
            outcome = None
            if self.ranks.is_first:
                outcome = self._outcome(benchmark, grader, Watch(finished=finished), step)
            return self._recorded(judged, step, outcome)
        outcome = self._sampled(judged, step)
        if outcome is not None:
            with explained("cache the first evaluation in", path.parent):
                write_evaluation(path, step, outcome.samples)
        return self._recorded(judged, step, outcome)

    def _hash(self, benchmark: Benchmark) -> str:
        problems = [
            [problem.problem_id, problem.question, problem.answer, [int(t) for t in self.encode(problem)]]
            for problem in benchmark.problems
        ]
        how = [benchmark.name, benchmark.num_samples, repr(benchmark.sampling), benchmark.require_stop]
        content = json.dumps([FORMAT_VERSION, self.key, self.seed, how, problems])
        return hashlib.sha256(content.encode()).hexdigest()[:20]


def shared_first_evaluation(
    plan: EvaluationPlan, config: RunConfig, policy: Policy, cache_dir: Path
) -> SharedFirstEvaluation:
    """The same plan, with the evaluation before training shared."""
    settings = config.model_dump(mode="json", include=set(_SECTIONS))
    digest = hashlib.sha256(json.dumps([settings, torch.__version__, type(plan.engine).__name__]).encode())
    for name, tensor in sorted(policy.weights().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(whole(tensor).detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    parts = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return SharedFirstEvaluation(**parts, cache_dir=cache_dir, key=digest.hexdigest())


def _recalled(path: Path, benchmark: Benchmark) -> Finished:
    """The cached samples, nothing where there are none or the file is damaged."""
    if not path.is_file():
        return {}
    try:
        return EvaluationParts(path, step=0).read(benchmark.problems, num_samples=benchmark.num_samples)
    except RunFolderError:
        path.unlink(missing_ok=True)
        return {}
