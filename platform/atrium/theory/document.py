"""The document of `atrium theory`: tables of the results, most of them with an explanatory note."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from atrium.document.document import Cell, Document, Table, Value, plain_table, table_document
from atrium.document.formatting import value_text
from atrium.method.words import interval
from atrium.theory.findings import Findings
from atrium.theory.results import (
    EstimatorBias,
    Faithfulness,
    MethodWindow,
    PreferenceOptima,
    RegressionFindings,
    UpdateCourse,
)


def theory_document(findings: Findings) -> Document:
    """Return the document of `atrium theory`, with tables for the non-empty parts of `findings`."""
    tables: list[Table] = []
    if findings.equivalences:
        tables.append(_gradients(findings))
    if findings.windows:
        tables.append(_windows(findings.windows))
    tables += [_courses(rewards, found, findings.bin_edges) for rewards, found in findings.courses.items()]
    if findings.biases:
        tables += [_biases(findings.biases), _faithfulness(findings.faithfulness)]
    if findings.regression is not None:
        tables += _regression(findings.regression)
    if findings.preferences is not None:
        tables.append(_preferences(findings.preferences))
    return table_document("theory", "Theorems on enumerated policies", *tables)


def _gradients(findings: Findings) -> Table:
    general, ratio_clip, wrong = "|c - general|", "|c - ratio clip|", "wrong constant (%)"
    titles = ("method", "c(1, 1)", "c(1, -1)", "clipped (%)", general, ratio_clip, "C ≠ [l, u]", wrong)
    rows: list[list[Cell]] = []
    for curve, found in zip(findings.curves, findings.equivalences, strict=True):
        clip: list[Cell] = ["more than", "a clip"]
        if found.is_clip:
            clip = [
                _error(found.general_error),
                None if found.window_error is None else _error(found.window_error),
            ]
        disagreeing = None if found.num_disagreeing is None else f"{found.num_disagreeing} tokens"
        wrong_share = Value(found.wrong_constant_frac, "share") if found.is_clip else None
        coefficients = [Value(value) for value in curve.at_one]
        rows.append(
            [found.name, *coefficients, Value(found.dropped_frac, "share"), *clip, disagreeing, wrong_share]
        )
    return plain_table(
        "gradient of a token (Theorems 4.1 and 4.2 of arXiv 2602.05494, "
        f"{findings.equivalences[0].num_tokens} random tokens)",
        titles,
        rows,
        "The gradient of a token is c(w, A) grad log pi. |c - general|: difference from the gradient of "
        "min(w A, clip_C(w) A) with the method's own constraint C; |c - ratio clip|: difference from PPO's "
        "clip at [l, u]. Wrong constant: tokens whose gradient changes if the clipped value is 0, outside "
        "the trust region, instead of 1.",
    )


def _windows(windows: Sequence[MethodWindow]) -> Table:
    titles = ("method", "window", "1 - l", "u - 1", "(u - 1) / (1 - l)", "-log l / log u", "l u")
    return plain_table(
        "windows and their asymmetry",
        titles,
        [[method.name, *_asymmetry(method)] for method in windows],
        "For KL3, the window is wider above 1 on a linear scale and wider below 1 on a log scale: "
        "l u < 1 < (u - 1) / (1 - l).",
    )


def _asymmetry(method: MethodWindow) -> list[Cell]:
    window = method.constant
    if window is None or window.is_unbounded:
        where = "depends on the token's probability" if method.by_probability else "none on the ratio"
        return [where, "", "", "", "", ""]
    below, above = 1.0 - window.lower, window.upper - 1.0
    found: list[Cell] = [interval(window), Value(below, "ratio"), Value(above, "ratio")]
    if window.lower == 0.0 or math.isinf(above):
        return [*found, "", "", ""]
    logs = -math.log(window.lower) / math.log(window.upper) if above else math.nan
    return [
        *found,
        Value(above / below, "ratio") if below else "",
        Value(logs, "ratio"),
        Value(window.lower * window.upper, "ratio"),
    ]


def _courses(rewards: str, courses: Sequence[UpdateCourse], bin_edges: Sequence[float]) -> Table:
    first = courses[0]
    num_updates, num_seeds = len(first.kl), len(first.final_entropy_S)
    bins = [f"mass {100 * low:g} to {100 * high:g} % (points)" for low, high in pairwise(bin_edges)]
    distances = ("KL(old‖new)", "KL(new‖old)", "TV")
    titles = ["method", "entropy", f"minus {first.name}", *distances, "reward", "clipped (%)"]
    rows: list[list[Cell]] = []
    for course in courses:
        both = zip(course.final_entropy_S, first.final_entropy_S, strict=True)
        rows.append(
            [
                course.name,
                _with_error(course.final_entropy_S),
                "" if course is first else _with_error([ours - theirs for ours, theirs in both]),
                *(Value(one[-1]) for one in (course.kl, course.reverse_kl, course.total_variation)),
                Value(course.reward_change[-1], is_signed=True),
                Value(course.dropped_frac[-1], "share"),
                *(Value(change, "points", is_signed=True) for change in course.mass_change),
            ]
        )
    return plain_table(
        f"{rewards}: after {num_updates} updates on one batch (means of {num_seeds} batches)",
        [*titles, *bins],
        rows,
        "Entropy (in nats) and reward are changes, ± one standard error over batches. The first update has "
        "the same length for every method. Mass: change in total probability of the completions with this "
        "behavior probability.",
    )


def _biases(biases: Sequence[EstimatorBias]) -> Table:
    lengths = sorted({bias.num_tokens for bias in biases})
    columns = [(where, num_tokens) for where in ("on", "off") for num_tokens in lengths]
    by_column = [f"{where}, T = {num_tokens}" for where, num_tokens in columns]
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(bias.name for bias in biases):
        found = {(bias.is_on_policy, bias.num_tokens): bias for bias in biases if bias.name == name}
        cells = [_error(found[where == "on", num].token_error) for where, num in columns]
        longest = found[False, lengths[-1]]
        rows.append([name, longest.target, *cells, _error(longest.sequence_error)])
    return plain_table(
        "KL penalties: relative error of the expected gradient, by enumeration",
        ["estimator", "gradient of", *by_column, f"sequence, off, T = {lengths[-1]}"],
        rows,
        "Sums over tokens, except in the last column; on: samples of the policy, off: samples of an older "
        "policy. An estimator that is exact for one token (T = 1) is biased as a sum over tokens, and exact "
        "at sequence level.",
    )


def _faithfulness(found: Sequence[Faithfulness]) -> Table:
    return plain_table(
        "methods: cosine between the expected gradient and the gradient of the expected reward",
        ["method", *(f"KL = {kl:.3g}" for kl in found[0].distance_kl)],
        [[method.name, *(Value(cosine, "ratio") for cosine in method.cosine)] for method in found],
        "The policy moves along the true gradient of the reward; 0 if all tokens are clipped. All methods "
        "use the reward less its mean as the advantage.",
    )


def _regression(findings: RegressionFindings) -> list[Table]:
    title = "GVPO's Theorem {} (arXiv 2504.19599): largest difference in a completion's probability"
    objectives = dict.fromkeys(optimum.objective for optimum in findings.optima)
    by_sampler: dict[str, list[str]] = {}
    for optimum in findings.optima:
        by_sampler.setdefault(optimum.sampler, []).append(_error(optimum.max_difference))
    steps = findings.steps
    numbers = zip(steps.kl, steps.reward, steps.max_difference, strict=True)
    return [
        plain_table(
            title.format(1),
            ("start", "from π' exp(R / β) / Z"),
            [[str(start), _error(error)] for start, error in enumerate(findings.start_errors, start=1)],
        ),
        plain_table(
            title.format(2),
            ["optimum under", *objectives],
            [[sampler, *errors] for sampler, errors in by_sampler.items()],
            "GVPO's optimum is the same for all samplers. That of importance-weighted reward with a KL "
            "penalty agrees only for the policy's own samples.",
        ),
        plain_table(
            title.format(3),
            ("steps", "KL from the first policy", "E[R]", "from π' exp(n R / β) / Z"),
            [
                [str(number), Value(kl), Value(reward), _error(error)]
                for number, (kl, reward, error) in enumerate(numbers, start=1)
            ],
            "n steps reach the policy of one step with β / n: a larger KL, and the best reward at this KL.",
        ),
    ]


def _preferences(found: PreferenceOptima) -> Table:
    numbers = (found.dpo_on_two, found.gvpo_on_two, found.dpo_on_three, found.gvpo_on_three)
    return plain_table(
        "DPO (arXiv 2305.18290) and GVPO on equal data: largest error of a probability at the optimum",
        ("initial π(third answer) (%)", "DPO, two answers", "GVPO, two", "DPO, three", "GVPO, three"),
        [
            [f"{100 * mass:.1f}", *map(_error, errors)]
            for mass, *errors in zip(found.masses, *numbers, strict=True)
        ],
        "Uniqueness of the optimum depends on coverage, not on the method. With data on two of three "
        "answers, any probability of the third is optimal; with data on all three, both methods find "
        "π' exp(R / β) / Z.",
    )


def _error(value: float) -> str:
    """Format an error as a percentage, or as a fraction in scientific notation if it is below 0.01 %."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else f"{value:.0e}"


def _with_error(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return f"{value_text(statistics.fmean(values), is_signed=True)} ± {value_text(spread)}"
