"""The summary of an evaluation as plain numbers for JSON, computed only from its samples.

Scores have two confidence intervals: one over problems, and one over samples (see `stats.estimates`). The
summary also contains the share of truncated samples, the mean length and the share of each verdict,
because a score alone can be misleading.

Axes: P problems, K samples per problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.base.records import EvaluatedSample, FinishReason, Floats, VerdictKind
from atrium.grading.grader import ENDLESS_THOUGHT
from atrium.stats.estimates import (
    Counts,
    Interval,
    interval_over_problems,
    macro_average,
    mean_at_k,
    pass_at_k,
    pass_hat_k,
    sampling_interval,
)

Results = dict[str, Any]
"""A dictionary of numbers, null, lists and dictionaries, which can be stored as JSON."""


def summarize(
    samples: Sequence[EvaluatedSample],
    *,
    num_samples: int,
    pass_at: Sequence[int],
    majority_P: Mapping[int, Floats] | None = None,
    breakdown_by: Sequence[str] = (),
) -> Results:
    """Summarize the samples of an evaluation, which are sorted by problem and sample index.

    Each problem has `num_samples` samples. `pass_at` lists the k of Pass@k and Pass^k, `majority_P` maps each
    k to the problems' Maj@k [P], and `breakdown_by` lists metadata keys. Intervals are [low, high], or null
    if they cannot be estimated. The keys of the summary are:

    - `k`: number of samples per problem, K; `num_problems`, `num_samples`, `num_tokens`: totals
    - `mean_at_k`, `pass_at_k`: scores at k = K
    - `interval_over_problems`, `interval_sampling`: intervals of `mean_at_k`
    - `completion_length`: mean number of tokens; `truncated_frac`: share of truncated samples
    - `maj_at_k`, `maj_interval_over_problems`: Maj@K and its interval, only if `majority_P` is given
    - `maj_at`, `maj_at_intervals`: Maj@k and its interval over problems by k, only if `majority_P` is given
    - `pass_at`, `pass_at_intervals`: Pass@k and its intervals by k
    - `pass_hat`: Pass^k by k, always including k = K
    - `pass_hat_intervals`: intervals of Pass^k for each k in the argument `pass_at`
    - `curve`: lists for k from 1 to K: Mean@k of the first k samples, and Pass@k and Pass^k from all samples
    - `num_endless_thoughts`: number of answers whose reasoning did not end
    - `verdicts`: share of each kind of verdict, regardless of truncation
    - `breakdown`: for each key in `breakdown_by` and each of its values, the scores of the problems with it
    """
    samples_PK = [samples[start : start + num_samples] for start in range(0, len(samples), num_samples)]
    is_correct_PK = np.array([s.is_correct for s in samples]).reshape(-1, num_samples)
    num_correct_P = is_correct_PK.sum(axis=1)
    counted = Counter(sample.verdict for sample in samples)
    breakdown = {key: _breakdown(samples_PK, num_samples, key) for key in breakdown_by}
    return {
        "k": num_samples,
        **_scores(samples_PK, num_samples),
        **_majority(majority_P, num_samples),
        **_by_k(num_correct_P, num_samples, pass_at),
        "curve": _curve(is_correct_PK),
        "num_samples": len(samples),
        "num_tokens": sum(sample.num_tokens for sample in samples),
        "num_endless_thoughts": sum(sample.reason == ENDLESS_THOUGHT for sample in samples),
        "verdicts": {kind.value: counted[kind] / len(samples) for kind in VerdictKind},
        "breakdown": {key: groups for key, groups in breakdown.items() if groups},
    }


def summarize_all(evaluations: Sequence[Sequence[EvaluatedSample]]) -> Results:
    """Return the macro average over benchmarks, which gives each benchmark the same weight.

    `evaluations` contains the samples of each benchmark, sorted by problem and sample index. The result
    contains `mean_at_k` and `pass_at_k`, with each benchmark at its own K, and their intervals over
    problems ([low, high] or null).
    """
    mean_BP, pass_BP = [], []
    for samples in evaluations:
        num_samples = 1 + max(sample.sample_index for sample in samples)
        is_correct_PK = np.array([s.is_correct for s in samples]).reshape(-1, num_samples)
        mean_BP.append(is_correct_PK.mean(axis=1))
        pass_BP.append(is_correct_PK.any(axis=1).astype(np.float64))
    mean, passed = macro_average(mean_BP), macro_average(pass_BP)
    return {
        "num_benchmarks": len(evaluations),
        "mean_at_k": mean.value,
        "interval_over_problems": _as_list(mean.interval),
        "pass_at_k": passed.value,
        "pass_interval_over_problems": _as_list(passed.interval),
    }


def _scores(samples_PK: Sequence[Sequence[EvaluatedSample]], num_samples: int) -> Results:
    """Return the main scores and their intervals, the mean length, and the share of truncated samples."""
    samples = [sample for samples_K in samples_PK for sample in samples_K]
    num_correct_P = np.array([sum(s.is_correct for s in samples_K) for samples_K in samples_PK])
    mean_P = mean_at_k(num_correct_P, num_samples)
    return {
        "mean_at_k": float(mean_P.mean()),
        "pass_at_k": float(np.mean(num_correct_P > 0)),
        "interval_over_problems": _as_list(interval_over_problems(mean_P)),
        "interval_sampling": _as_list(sampling_interval(num_correct_P, num_samples)),
        "num_problems": len(num_correct_P),
        "completion_length": float(np.mean([sample.num_tokens for sample in samples])),
        "truncated_frac": float(np.mean([s.finish_reason is FinishReason.LENGTH for s in samples])),
    }


def _majority(majority_P: Mapping[int, Floats] | None, num_samples: int) -> Results:
    if majority_P is None:
        return {}
    return {
        "maj_at_k": float(majority_P[num_samples].mean()),
        "maj_interval_over_problems": _as_list(interval_over_problems(majority_P[num_samples])),
        "maj_at": {str(k): float(value_P.mean()) for k, value_P in majority_P.items()},
        "maj_at_intervals": {str(k): _as_list(interval_over_problems(v)) for k, v in majority_P.items()},
    }


def _by_k(num_correct_P: Counts, num_samples: int, ks: Sequence[int]) -> Results:
    """Return Pass@k and Pass^k for each k in `ks`, with their intervals over problems and over samples.

    Pass^k is also returned for k = `num_samples`, without intervals unless `ks` contains it.
    """
    pass_PK = pass_at_k(num_correct_P, num_samples)
    hat_PK = pass_hat_k(num_correct_P, num_samples)
    # All of k samples are correct if none is wrong, so Pass^k is 1 minus the Pass@k of wrong samples.
    wrong_P = num_samples - num_correct_P
    sampling = {k: sampling_interval(num_correct_P, num_samples, k) for k in ks}
    hat_sampling = {k: _complement(sampling_interval(wrong_P, num_samples, k)) for k in ks}
    return {
        "pass_at": {str(k): float(pass_PK[:, k - 1].mean()) for k in ks},
        "pass_at_intervals": {str(k): _both(pass_PK[:, k - 1], sampling[k]) for k in ks},
        "pass_hat": {str(k): float(hat_PK[:, k - 1].mean()) for k in sorted({*ks, num_samples})},
        "pass_hat_intervals": {str(k): _both(hat_PK[:, k - 1], hat_sampling[k]) for k in ks},
    }


def _curve(is_correct_PK: NDArray[np.bool_]) -> Results:
    num_correct_P, num_samples = is_correct_PK.sum(axis=1), is_correct_PK.shape[1]
    first_K = np.cumsum(is_correct_PK.mean(axis=0)) / np.arange(1, num_samples + 1)
    return {
        "mean_at_k": first_K.tolist(),
        "pass_at_k": pass_at_k(num_correct_P, num_samples).mean(axis=0).tolist(),
        "pass_hat_k": pass_hat_k(num_correct_P, num_samples).mean(axis=0).tolist(),
    }


def _breakdown(samples_PK: Sequence[Sequence[EvaluatedSample]], num_samples: int, key: str) -> Results:
    value_P = [samples_K[0].problem.metadata.get(key) for samples_K in samples_PK]
    values = sorted({value for value in value_P if value is not None}, key=_natural_order)
    return {
        value: _scores(
            [samples_K for samples_K, other in zip(samples_PK, value_P, strict=True) if other == value],
            num_samples,
        )
        for value in values
    }


def _natural_order(value: str) -> tuple[bool, int, str]:
    """Return a sort key that puts numbers first, in numeric order, and then text in alphabetical order."""
    is_text = not value.isdecimal()
    return (is_text, 0 if is_text else int(value), value)


def _both(value_P: Floats, sampling: Interval | None) -> Results:
    return {"over_problems": _as_list(interval_over_problems(value_P)), "sampling": _as_list(sampling)}


def _complement(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(1.0 - interval.high, 1.0 - interval.low)


def _as_list(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)
