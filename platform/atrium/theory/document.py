"""The document of `atrium theory`: a table for each theorem, and how to read it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from atrium.document.document import Cell, Column, Document, Row, Section, Table, Value
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
    """The findings in the order of the theorems."""
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
    section = Section(title="Findings", tables=tuple(tables))
    return Document(key="theory", title="Theorems on a policy that is enumerated", sections=(section,))


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> Table:
    return Table(
        title=title,
        columns=tuple(map(Column, titles)),
        rows=tuple(Row(tuple(row)) for row in rows),
        note=note,
    )


def _gradients(findings: Findings) -> Table:
    general, ratio_clip, wrong = "|c - general|", "|c - ratio clip|", "wrong constant (%)"
    titles = ("method", "c(1, 1)", "c(1, -1)", "dropped (%)", general, ratio_clip, "C ≠ [l, u]", wrong)
    rows: list[list[Cell]] = []
    for curve, found in zip(findings.curves, findings.equivalences, strict=True):
        clip: list[Cell] = ["not only", "a clip"]
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
    return _table(
        "the gradient of a token (Theorems 4.1 and 4.2 of arXiv 2602.05494, "
        f"{findings.equivalences[0].num_tokens} random tokens)",
        titles,
        rows,
        "c is what A grad log pi is multiplied by. |c - general|: against the gradient of min(w A, "
        "clip_C(w) A) for the method's own constraint C; |c - ratio clip|: against PPO's clip at the "
        "same [l, u]. Wrong constant: tokens whose gradient changes when the clipped value is 0, outside"
        " the region, instead of inside it.",
    )


def _windows(windows: Sequence[MethodWindow]) -> Table:
    titles = ("method", "window", "1 - l", "u - 1", "(u - 1) / (1 - l)", "-log l / log u", "l u")
    return _table(
        "windows and their asymmetry",
        titles,
        [[method.name, *_asymmetry(method)] for method in windows],
        "KL3 is wider above on the linear scale and wider below on the log scale: l u < 1 < (u - 1) / (1"
        " - l).",
    )


def _asymmetry(method: MethodWindow) -> list[Cell]:
    window = method.constant
    if window is None or window.is_unbounded:
        where = "by the token's probability" if method.by_probability else "none on the ratio"
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
    titles = ["method", "entropy", f"less {first.name}'s", *distances, "reward", "dropped (%)"]
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
    return _table(
        f"{rewards}: after {num_updates} updates on one batch (means of {num_seeds} batches)",
        [*titles, *bins],
        rows,
        "Entropy and reward are changes, ± one standard error over batches; the first update has the same "
        "length for every method. Mass: probability moved into completions that were that likely before.",
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
    return _table(
        "KL penalties: relative error of the expected gradient, by enumeration",
        ["estimator", "gradient of", *by_column, f"sequence, off, T = {lengths[-1]}"],
        rows,
        "Summed over tokens, except the last column; on: the policy's own samples, off: an older "
        "policy's. An exact estimator of one decision (T = 1) is biased as a sum over tokens, and exact "
        "at sequence level.",
    )


def _faithfulness(found: Sequence[Faithfulness]) -> Table:
    return _table(
        "methods: cosine between the expected gradient and that of the true reward",
        ["method", *(f"KL = {kl:.3g}" for kl in found[0].distance_kl)],
        [[method.name, *(Value(cosine, "ratio") for cosine in method.cosine)] for method in found],
        "As the policy moves along the true gradient of the reward; 0 where every token is dropped. "
        "Rewards less their mean, whatever the method's own advantage.",
    )


def _regression(findings: RegressionFindings) -> list[Table]:
    title = "GVPO's Theorem {} (arXiv 2504.19599): the largest difference in any completion's probability"
    objectives = dict.fromkeys(optimum.objective for optimum in findings.optima)
    by_sampler: dict[str, list[str]] = {}
    for optimum in findings.optima:
        by_sampler.setdefault(optimum.sampler, []).append(_error(optimum.max_difference))
    steps = findings.steps
    numbers = zip(steps.kl, steps.reward, steps.max_difference, strict=True)
    return [
        _table(
            title.format(1),
            ("start", "from π' exp(R / β) / Z"),
            [[str(start), _error(error)] for start, error in enumerate(findings.start_errors, start=1)],
        ),
        _table(
            title.format(2),
            ["optimum under", *objectives],
            [[sampler, *errors] for sampler, errors in by_sampler.items()],
            "The optimum is the same for every sampler; that of importance-weighted reward with a KL "
            "penalty is the same only for the policy's own samples.",
        ),
        _table(
            title.format(3),
            ("steps", "KL from the first policy", "E[R]", "from π' exp(n R / β) / Z"),
            [
                [str(number), Value(kl), Value(reward), _error(error)]
                for number, (kl, reward, error) in enumerate(numbers, start=1)
            ],
            "n steps reach what one step with β / n does: more KL, the best reward at it.",
        ),
    ]


def _preferences(found: PreferenceOptima) -> Table:
    numbers = (found.dpo_on_two, found.gvpo_on_two, found.dpo_on_three, found.gvpo_on_three)
    return _table(
        "DPO (arXiv 2305.18290) and GVPO on equal data: error of the optimum found",
        ("π(third answer) at first (%)", "DPO, two answers", "GVPO, two", "DPO, three", "GVPO, three"),
        [
            [f"{100 * mass:.1f}", *map(_error, errors)]
            for mass, *errors in zip(found.masses, *numbers, strict=True)
        ],
        "Whether the optimum is unique depends on coverage, not on the method: with data on two of three"
        " answers any probability of the third is optimal, with data on all three both methods find π' "
        "exp(R / β) / Z.",
    )


def _error(value: float) -> str:
    """A relative error: in percent where people would see it, else as a power of ten."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else f"{value:.0e}"


def _with_error(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return f"{value_text(statistics.fmean(values), is_signed=True)} ± {value_text(spread)}"
