"""What `atrium theory` prints: a table per theorem, and one sentence on how to read it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from atrium.cli.number_table import print_table
from atrium.cli.objective_axes import interval
from atrium.cli.theory_findings import Findings
from atrium.compare.figures.methods import MethodWindow
from atrium.theory.results import (
    CoefficientCurves,
    Equivalence,
    EstimatorBias,
    Faithfulness,
    RegressionFindings,
    UpdateCourse,
)
from atrium.windows import Window


def print_findings(findings: Findings, windows: Sequence[MethodWindow], console: Console) -> None:
    """Print what was computed, in the order of the theorems."""
    if findings.equivalences:
        _print_gradients(findings.curves, findings.equivalences, console)
    if windows:
        _print_windows(windows, console)
    for rewards, courses in findings.courses.items():
        _print_courses(rewards, courses, findings.bin_edges, console)
    if findings.biases:
        _print_biases(findings.biases, console)
        _print_faithfulness(findings.faithfulness, console)
    if findings.regression is not None:
        _print_regression(findings.regression, console)


def _print_gradients(
    curves: Sequence[CoefficientCurves], equivalences: Sequence[Equivalence], console: Console
) -> None:
    num_tokens = equivalences[0].num_tokens
    _title(
        f"the gradient of a token (Theorems 4.1 and 4.2 of arXiv 2602.05494, {num_tokens} random tokens)",
        console,
    )
    general, ratio_clip, wrong = "|c - general|", "|c - ratio clip|", "wrong constant"
    titles = ("method", "c(1, 1)", "c(1, -1)", "dropped", general, ratio_clip, "C ≠ [l, u]", wrong)
    rows = []
    for curve, found in zip(curves, equivalences, strict=True):
        window_error = "–" if found.window_error is None else _error(found.window_error)
        clip = [_error(found.general_error), window_error]
        row = [found.name, f"{curve.at_one[0]:.4g}", f"{curve.at_one[1]:.4g}", _percent(found.dropped_frac)]
        row += clip if found.is_clip else ["not only", "a clip"]
        row.append("–" if found.num_disagreeing is None else f"{found.num_disagreeing} tokens")
        row.append(_percent(found.wrong_constant_frac) if found.is_clip else "–")
        rows.append(row)
    print_table(console, titles, rows, dropped_first=(wrong, "c(1, -1)", "dropped"))
    _note(
        "c is what A grad log pi is multiplied by. |c - general|: against the gradient of min(w A, "
        "clip_C(w) A) for the method's own constraint C; |c - ratio clip|: against PPO's clip at the same "
        "[l, u]. Wrong constant: tokens whose gradient changes when the clipped value is 0, outside the "
        "region, instead of inside it.",
        console,
    )


def _print_windows(windows: Sequence[MethodWindow], console: Console) -> None:
    _title("windows and their asymmetry", console)
    titles = ("method", "window", "1 - l", "u - 1", "(u - 1) / (1 - l)", "-log l / log u", "l u")
    rows = []
    for method in windows:
        window = method.constant
        if window is None or window.is_unbounded:
            text = "by the token's probability" if method.by_probability else "none on the ratio"
            rows.append([method.name, text, "", "", "", "", ""])
        else:
            rows.append([method.name, interval(window), *_asymmetry(window)])
    print_table(console, titles, rows, dropped_first=("l u", "1 - l", "u - 1"))
    _note(
        "KL3 is wider above on the linear scale and wider below on the log scale: "
        "l u < 1 < (u - 1) / (1 - l).",
        console,
    )


def _asymmetry(window: Window) -> list[str]:
    below, above = 1.0 - window.lower, window.upper - 1.0
    if window.lower == 0.0 or math.isinf(window.upper):
        return [f"{below:.4f}", _finite(above), "", "", ""]
    logs = -math.log(window.lower) / math.log(window.upper) if above else math.nan
    return [
        f"{below:.4f}",
        f"{above:.4f}",
        f"{above / below:.4f}" if below else "",
        f"{logs:.4f}",
        f"{window.lower * window.upper:.4f}",
    ]


def _print_courses(
    rewards: str, courses: Sequence[UpdateCourse], bin_edges: Sequence[float], console: Console
) -> None:
    first = courses[0]
    num_updates, num_seeds = len(first.kl), len(first.final_entropy_S)
    _title(f"{rewards}: after {num_updates} updates on one batch (means of {num_seeds} batches)", console)
    bins = [f"mass {100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges)]
    paired, reverse = f"less {first.name}'s", "KL(new‖old)"
    titles = ["method", "entropy", paired, "KL(old‖new)", reverse, "TV", "reward", "dropped", *bins]
    rows = []
    for course in courses:
        both = zip(course.final_entropy_S, first.final_entropy_S, strict=True)
        row = [
            course.name,
            _with_error(course.final_entropy_S),
            "" if course is first else _with_error([ours - theirs for ours, theirs in both]),
            f"{course.kl[-1]:.4f}",
            f"{course.reverse_kl[-1]:.4f}",
            f"{course.total_variation[-1]:.4f}",
            f"{course.reward_change[-1]:+.4f}",
            _percent(course.dropped_frac[-1]),
        ]
        rows.append(row + [f"{100 * change:+.2f} %" for change in course.mass_change])
    print_table(console, titles, rows, dropped_first=(reverse, "TV", *bins, paired))
    _note(
        "Entropy and reward are changes, ± one standard error over batches; the first update has the same "
        "length for every method. Mass: probability moved into completions that were that likely before.",
        console,
    )


def _print_biases(biases: Sequence[EstimatorBias], console: Console) -> None:
    _title("KL penalties: relative error of the expected gradient, by enumeration", console)
    lengths = sorted({bias.num_tokens for bias in biases})
    columns = [(where, num_tokens) for where in ("on", "off") for num_tokens in lengths]
    by_column = [f"{where}, T = {num_tokens}" for where, num_tokens in columns]
    titles = ["estimator", "gradient of", *by_column, f"sequence, off, T = {lengths[-1]}"]
    rows = []
    for name in dict.fromkeys(bias.name for bias in biases):
        found = {(bias.is_on_policy, bias.num_tokens): bias for bias in biases if bias.name == name}
        cells = [_error(found[where == "on", num].token_error) for where, num in columns]
        longest = found[False, lengths[-1]]
        rows.append([name, longest.target, *cells, _error(longest.sequence_error)])
    print_table(console, titles, rows, dropped_first=("gradient of", by_column[-1], by_column[2]))
    _note(
        "Summed over tokens, except the last column; on: the policy's own samples, off: an older policy's. "
        "An exact estimator of one decision (T = 1) is biased as a sum over tokens, and exact at sequence "
        "level.",
        console,
    )


def _print_faithfulness(found: Sequence[Faithfulness], console: Console) -> None:
    _title("methods: cosine between the expected gradient and that of the true reward", console)
    titles = ["method", *(f"KL = {kl:.3g}" for kl in found[0].distance_kl)]
    rows = [[method.name, *(f"{cosine:.3f}" for cosine in method.cosine)] for method in found]
    print_table(console, titles, rows, dropped_first=titles[:1:-1])
    _note(
        "As the policy moves along the true gradient of the reward; 0 where every token is dropped. Rewards "
        "less their mean, whatever the method's own advantage.",
        console,
    )


def _print_regression(findings: RegressionFindings, console: Console) -> None:
    _title(
        "GVPO's Theorems 1 to 3 (arXiv 2504.19599): the largest difference in any completion's probability",
        console,
    )
    errors = ", ".join(_error(error) for error in findings.start_errors)
    text = f"1  from {len(findings.start_errors)} random starts to π' exp(R / β) / Z: {errors}"
    console.print(Text(text), soft_wrap=True)
    objectives = dict.fromkeys(optimum.objective for optimum in findings.optima)
    samplers = dict.fromkeys(optimum.sampler for optimum in findings.optima)
    by_sampler = [[found for found in findings.optima if found.sampler == sampler] for sampler in samplers]
    rows = [
        [f"   {optima[0].sampler}", *(_error(found.max_difference) for found in optima)]
        for optima in by_sampler
    ]
    print_table(console, ["2  optimum under", *objectives], rows)
    steps = findings.steps
    numbers = zip(steps.kl, steps.reward, steps.max_difference, strict=True)
    rows = [
        [f"   {number}", f"{kl:.4f}", f"{reward:.4f}", _error(error)]
        for number, (kl, reward, error) in enumerate(numbers, start=1)
    ]
    titles = ("3  steps", "KL from the first policy", "E[R]", "from π' exp(n R / β) / Z")
    print_table(console, titles, rows)
    _note(
        "The optimum is the same for every sampler; that of importance-weighted reward with a KL penalty is "
        "the same only for the policy's own samples. n steps reach what one step with β / n does: more KL, "
        "the best reward at it.",
        console,
    )


def _title(text: str, console: Console) -> None:
    console.print(Text(text, "bold"), soft_wrap=True)


def _note(text: str, console: Console) -> None:
    console.print(Text(text, "dim"), soft_wrap=True)
    console.print()


def _error(value: float) -> str:
    """A relative error: in percent where people would see it, else as a power of ten."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else f"{value:.0e}"


def _with_error(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):+.4f} ± {spread:.4f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _finite(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.4f}"
