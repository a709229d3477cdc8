"""One benchmark on all ranks: the problems are dealt, each engine answers its share, rank 0 sums up.

Of the ranks that share an engine, one grades its answers. A sample's seed depends on its problem and index
alone, so who answers changes nothing but the last bits of what an engine computes in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Evaluation
from atrium.records import EvaluatedSample, FinishReason, Problem, VerdictKind
from atrium.train.ranks.ranks import Ranks


def evaluated_together(
    benchmark: Benchmark,
    evaluate: Callable[[Benchmark, Watch], Evaluation],
    sample: Callable[[Benchmark], None],
    ranks: Ranks,
) -> Evaluation | None:
    """What `evaluate` gives for the whole benchmark, on rank 0; None on the others.

    `sample` asks the engine for what `evaluate` does: it is shared by ranks, which have to ask alike.
    """
    if ranks.is_alone:
        return evaluate(benchmark, Watch())
    share = ranks.share(benchmark.problems)
    samples: tuple[EvaluatedSample, ...] = ()
    if share and ranks.speaks:
        samples = evaluate(replace(benchmark, problems=tuple(share)), Watch()).samples
    elif share:
        sample(replace(benchmark, problems=tuple(share)))
    found = ranks.gather([_record(sample) for sample in samples])
    if not ranks.is_first:
        return None
    problems = {problem.problem_id: problem for problem in benchmark.problems}
    finished: dict[str, list[EvaluatedSample]] = {name: [] for name in problems}
    for record in (record for records in found for record in records):
        finished[record["problem"]].append(_sample(record, problems))
    return evaluate(benchmark, Watch(finished=finished))


def _record(sample: EvaluatedSample) -> dict[str, Any]:
    record = {field.name: getattr(sample, field.name) for field in fields(sample)}
    return {**record, "problem": sample.problem.problem_id}


def _sample(record: Mapping[str, Any], problems: Mapping[str, Problem]) -> EvaluatedSample:
    return EvaluatedSample(
        **{
            **record,
            "problem": problems[record["problem"]],
            "verdict": VerdictKind(record["verdict"]),
            "finish_reason": FinishReason(record["finish_reason"]),
        }
    )
