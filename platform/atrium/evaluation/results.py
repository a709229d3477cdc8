"""The summary of one evaluation: plain numbers, ready for JSON, computed from its samples alone.

Every score comes with both of its intervals (see `estimates`), and beside it stand the truncated share,
the mean length and the share of each verdict, because a score without them can mislead.

Axes: P problems, K samples per problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from atrium.evaluation.estimates import (
    Counts,
    Interval,
    interval_over_problems,
    mean_at_k,
    pass_at_k,
    sampling_interval,
)
from atrium.records import FinishReason, Problem, VerdictKind
from atrium.tracking.tracker import EvaluatedSample

Results = dict[str, Any]
"""Numbers, null, and lists and dictionaries of them."""


def summarize(
    samples: Sequence[EvaluatedSample],
    *,
    num_samples: int,
    pass_at: Sequence[int],
    breakdown_by: Sequence[str] = (),
) -> Results:
    """Summarise samples given in the order of (problem, sample index), `num_samples` per problem.

    Keys: `k`, the number of samples per problem; `mean_at_k`, `pass_at_k` (at k = K),
    `interval_over_problems` and `interval_sampling` (of Mean@K; [low, high], or null where it cannot be
    estimated), `num_problems`; `pass_at` and `pass_at_intervals` by k; `num_samples`, `num_tokens`,
    `completion_length` (tokens, mean), `truncated_frac`; `verdicts`, the share of each kind, which
    ignores truncation as verdicts do; `breakdown`, by metadata key and value, for problems that have it.
    """
    first_of_each = samples[::num_samples]
    is_correct_PK = np.array([s.is_correct for s in samples]).reshape(-1, num_samples)
    num_correct_P = is_correct_PK.sum(axis=1)
    is_truncated = [sample.finish_reason is FinishReason.LENGTH for sample in samples]
    num_tokens = [sample.num_tokens for sample in samples]
    counted = Counter(sample.verdict for sample in samples)
    breakdown = {
        key: _breakdown([s.problem for s in first_of_each], num_correct_P, num_samples, key)
        for key in breakdown_by
    }
    return {
        "k": num_samples,
        **_scores(num_correct_P, num_samples),
        **_pass_at(num_correct_P, num_samples, pass_at),
        "num_samples": len(samples),
        "num_tokens": sum(num_tokens),
        "completion_length": float(np.mean(num_tokens)),
        "truncated_frac": float(np.mean(is_truncated)),
        "verdicts": {kind.value: counted[kind] / len(samples) for kind in VerdictKind},
        "breakdown": {key: groups for key, groups in breakdown.items() if groups},
    }


def single_numbers(results: Results) -> dict[str, float]:
    """The numbers of a summary that make curves over training, by name: `mean_at_8`, `pass_at_2`, ..."""
    mean = f"mean_at_{results['k']}"
    groups = {
        f"{key}_{value}/{mean}": scores["mean_at_k"]
        for key, by_value in results["breakdown"].items()
        for value, scores in by_value.items()
    }
    return {
        mean: results["mean_at_k"],
        **{f"pass_at_{k}": value for k, value in results["pass_at"].items()},
        "truncated_frac": results["truncated_frac"],
        "completion_length": results["completion_length"],
        **{f"{kind}_frac": share for kind, share in results["verdicts"].items()},
        **groups,
    }


def _scores(num_correct_P: Counts, num_samples: int) -> Results:
    mean_P = mean_at_k(num_correct_P, num_samples)
    return {
        "mean_at_k": float(mean_P.mean()),
        "pass_at_k": float(np.mean(num_correct_P > 0)),
        "interval_over_problems": _as_list(interval_over_problems(mean_P)),
        "interval_sampling": _as_list(sampling_interval(num_correct_P, num_samples)),
        "num_problems": len(num_correct_P),
    }


def _pass_at(num_correct_P: Counts, num_samples: int, ks: Sequence[int]) -> Results:
    pass_PK = pass_at_k(num_correct_P, num_samples)
    return {
        "pass_at": {str(k): float(pass_PK[:, k - 1].mean()) for k in ks},
        "pass_at_intervals": {
            str(k): {
                "over_problems": _as_list(interval_over_problems(pass_PK[:, k - 1])),
                "sampling": _as_list(sampling_interval(num_correct_P, num_samples, k)),
            }
            for k in ks
        },
    }


def _breakdown(problems: Sequence[Problem], num_correct_P: Counts, num_samples: int, key: str) -> Results:
    value_P = [problem.metadata.get(key) for problem in problems]
    values = sorted({value for value in value_P if value is not None}, key=_natural_order)
    return {
        value: _scores(num_correct_P[[other == value for other in value_P]], num_samples) for value in values
    }


def _natural_order(value: str) -> tuple[bool, int, str]:
    """Numbers by value, then text."""
    is_text = not value.isdecimal()
    return (is_text, 0 if is_text else int(value), value)


def _as_list(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)
