"""`atrium theory`: what the theorems say about any methods, computed on a policy that can be enumerated."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from atrium.cli.parser import CommandParser, draw
from atrium.compare.figures import methods as figures
from atrium.compare.figures.methods import MethodWindow
from atrium.config.method_files import resolve_preset
from atrium.config.presets import Preset
from atrium.method.words import interval
from atrium.theory.results import (
    EstimatorBias,
    Faithfulness,
    PreferenceOptima,
    RegressionFindings,
    UpdateCourse,
)
from atrium.views.terminal import print_json, print_numbers, say, standard_output, tell

if TYPE_CHECKING:
    from atrium.cli.methods.theory_findings import Findings

DEFAULT = ("grpo", "clip_higher", "atr", "cispo", "sapo", "gvpo")
"""Plain clipping, a wider one, KL3, a clipped weight, a soft gate, a regression."""
PARTS = ("gradients", "windows", "updates", "bias", "gvpo")
_CACHE = Path("runs/.cache")
_PROBABILITIES = tuple(10.0 ** (-2.0 + 0.05 * step) for step in range(40))
_EXAMPLES = """\
examples:
  atrium theory                          grpo, clip_higher, atr, cispo, sapo, gvpo
  atrium theory atr gspo dppo_binary_tv  any methods of conf/algorithm
  atrium theory atr grpo --only updates --seeds 64
"""


def main(argv: Sequence[str]) -> int:
    """Compute, print and draw; `ConfigError` for a name that is no method."""
    parser = CommandParser(
        "theory",
        "Show what the theorems say about methods, on a softmax policy small enough to enumerate: which\n"
        "gradient a token gets (Theorems 4.1 and 4.2 of ATR-GRPO), how asymmetric windows are, where\n"
        "probability and entropy go when a batch is used again, how biased token-level gradients are, and\n"
        "GVPO's Theorems 1 to 3.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names", nargs="*", metavar="ALG", help="files of conf/algorithm, or your own by path"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="batches per method (default: 8)")
    parser.add_figures()
    arguments = parser.parse(argv)
    if arguments.seeds < 2:
        parser.error(f"argument --seeds: {arguments.seeds} leaves no spread over seeds; allowed is 2 or more")
    presets = [resolve_preset(name) for name in dict.fromkeys(arguments.names or DEFAULT)]
    parts = tuple(part for part in PARTS if part in (arguments.only or PARTS))

    from atrium.cli.methods.theory_findings import find  # imports torch, after every mistake has been found

    findings = find(presets, parts, num_seeds=arguments.seeds)
    windows = [method_window(preset) for preset in presets] if "windows" in parts else []
    if arguments.json:
        found = {**dataclasses.asdict(findings), "windows": [dataclasses.asdict(row) for row in windows]}
        print_json({name: value for name, value in found.items() if value})
    else:
        _print_findings(findings, windows, standard_output())
        sys.stdout.flush()
    draw(arguments, lambda folder: _draw(findings, windows, folder))
    return 0


def method_window(preset: Preset) -> MethodWindow:
    """A method's window, by the behavior probability where it depends on it."""
    divergence = preset.divergence
    by_probability = [divergence.window_at(q) for q in _PROBABILITIES]
    found = tuple(window for window in by_probability if window is not None)
    return MethodWindow(
        name=preset.name,
        constant=divergence.window(),
        probabilities=_PROBABILITIES if found else (),
        by_probability=found if divergence.of_single_tokens else (),
    )


def _draw(findings: Findings, windows: Sequence[MethodWindow], folder: Path) -> list[Path]:
    drawn: list[figures.Paths] = []
    if findings.curves:
        drawn.append(figures.draw_gradients(findings.curves, folder, _CACHE))
    if windows:
        drawn.append(figures.draw_method_windows(windows, folder, _CACHE))
    if findings.courses:
        drawn.append(figures.draw_updates(findings.courses, findings.bin_edges, folder, _CACHE))
    if findings.biases:
        drawn.append(figures.draw_bias(findings.biases, findings.faithfulness, folder, _CACHE))
    if findings.regression is not None:
        drawn.append(figures.draw_regression(findings.regression, folder, _CACHE))
    return [path for paths in drawn for path in paths]


def _print_findings(findings: Findings, windows: Sequence[MethodWindow], console: Console) -> None:
    """Print a table per theorem, in their order, and one sentence on how to read each."""
    if findings.equivalences:
        _print_gradients(findings, console)
    if windows:
        _print_windows(windows, console)
    for rewards, courses in findings.courses.items():
        _print_courses(rewards, courses, findings.bin_edges, console)
    if findings.biases:
        _print_biases(findings.biases, console)
        _print_faithfulness(findings.faithfulness, console)
    if findings.regression is not None:
        _print_regression(findings.regression, console)
    if findings.preferences is not None:
        _print_preferences(findings.preferences, console)


def _print_gradients(findings: Findings, console: Console) -> None:
    num_tokens = findings.equivalences[0].num_tokens
    say(
        console,
        f"the gradient of a token (Theorems 4.1 and 4.2 of arXiv 2602.05494, {num_tokens} random tokens)",
        "bold",
    )
    general, ratio_clip, wrong = "|c - general|", "|c - ratio clip|", "wrong constant"
    titles = ("method", "c(1, 1)", "c(1, -1)", "dropped", general, ratio_clip, "C ≠ [l, u]", wrong)
    rows = []
    for curve, found in zip(findings.curves, findings.equivalences, strict=True):
        clip, wrong_share = ["not only", "a clip"], "–"
        if found.is_clip:
            window_error = "–" if found.window_error is None else _error(found.window_error)
            clip, wrong_share = (
                [_error(found.general_error), window_error],
                _percent(found.wrong_constant_frac),
            )
        coefficients = [f"{value:.4g}" for value in curve.at_one]
        disagreeing = "–" if found.num_disagreeing is None else f"{found.num_disagreeing} tokens"
        rows.append(
            [found.name, *coefficients, _percent(found.dropped_frac), *clip, disagreeing, wrong_share]
        )
    print_numbers(console, titles, rows, dropped_first=(wrong, "c(1, -1)", "dropped"))
    _note(
        "c is what A grad log pi is multiplied by. |c - general|: against the gradient of min(w A, "
        "clip_C(w) A) for the method's own constraint C; |c - ratio clip|: against PPO's clip at the same "
        "[l, u]. Wrong constant: tokens whose gradient changes when the clipped value is 0, outside the "
        "region, instead of inside it.",
        console,
    )


def _print_windows(windows: Sequence[MethodWindow], console: Console) -> None:
    say(console, "windows and their asymmetry", "bold")
    titles = ("method", "window", "1 - l", "u - 1", "(u - 1) / (1 - l)", "-log l / log u", "l u")
    rows = []
    for method in windows:
        window = method.constant
        if window is None or window.is_unbounded:
            text = "by the token's probability" if method.by_probability else "none on the ratio"
            rows.append([method.name, text, "", "", "", "", ""])
            continue
        below, above = 1.0 - window.lower, window.upper - 1.0
        row = [method.name, interval(window), f"{below:.4f}", "∞" if math.isinf(above) else f"{above:.4f}"]
        if window.lower == 0.0 or math.isinf(above):
            row += ["", "", ""]
        else:
            logs = -math.log(window.lower) / math.log(window.upper) if above else math.nan
            ratio = f"{above / below:.4f}" if below else ""
            row += [ratio, f"{logs:.4f}", f"{window.lower * window.upper:.4f}"]
        rows.append(row)
    print_numbers(console, titles, rows, dropped_first=("l u", "1 - l", "u - 1"))
    _note(
        "KL3 is wider above on the linear scale and wider below on the log scale: "
        "l u < 1 < (u - 1) / (1 - l).",
        console,
    )


def _print_courses(
    rewards: str, courses: Sequence[UpdateCourse], bin_edges: Sequence[float], console: Console
) -> None:
    first = courses[0]
    num_updates, num_seeds = len(first.kl), len(first.final_entropy_S)
    say(
        console, f"{rewards}: after {num_updates} updates on one batch (means of {num_seeds} batches)", "bold"
    )
    bins = [f"mass {100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges)]
    paired, reverse = f"less {first.name}'s", "KL(new‖old)"
    titles = ["method", "entropy", paired, "KL(old‖new)", reverse, "TV", "reward", "dropped", *bins]
    rows = []
    for course in courses:
        both = zip(course.final_entropy_S, first.final_entropy_S, strict=True)
        distances = (course.kl[-1], course.reverse_kl[-1], course.total_variation[-1])
        rows.append(
            [
                course.name,
                _with_error(course.final_entropy_S),
                "" if course is first else _with_error([ours - theirs for ours, theirs in both]),
                *(f"{distance:.4f}" for distance in distances),
                f"{course.reward_change[-1]:+.4f}",
                _percent(course.dropped_frac[-1]),
                *(f"{100 * change:+.2f} %" for change in course.mass_change),
            ]
        )
    print_numbers(console, titles, rows, dropped_first=(reverse, "TV", *bins, paired))
    _note(
        "Entropy and reward are changes, ± one standard error over batches; the first update has the same "
        "length for every method. Mass: probability moved into completions that were that likely before.",
        console,
    )


def _print_biases(biases: Sequence[EstimatorBias], console: Console) -> None:
    say(console, "KL penalties: relative error of the expected gradient, by enumeration", "bold")
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
    print_numbers(console, titles, rows, dropped_first=("gradient of", by_column[-1], by_column[2]))
    _note(
        "Summed over tokens, except the last column; on: the policy's own samples, off: an older policy's. "
        "An exact estimator of one decision (T = 1) is biased as a sum over tokens, and exact at sequence "
        "level.",
        console,
    )


def _print_faithfulness(found: Sequence[Faithfulness], console: Console) -> None:
    say(console, "methods: cosine between the expected gradient and that of the true reward", "bold")
    titles = ["method", *(f"KL = {kl:.3g}" for kl in found[0].distance_kl)]
    rows = [[method.name, *(f"{cosine:.3f}" for cosine in method.cosine)] for method in found]
    print_numbers(console, titles, rows, dropped_first=titles[:1:-1])
    _note(
        "As the policy moves along the true gradient of the reward; 0 where every token is dropped. Rewards "
        "less their mean, whatever the method's own advantage.",
        console,
    )


def _print_regression(findings: RegressionFindings, console: Console) -> None:
    say(
        console,
        "GVPO's Theorems 1 to 3 (arXiv 2504.19599): the largest difference in any completion's probability",
        "bold",
    )
    errors = ", ".join(_error(error) for error in findings.start_errors)
    text = f"1  from {len(findings.start_errors)} random starts to π' exp(R / β) / Z: {errors}"
    say(console, text)
    objectives = dict.fromkeys(optimum.objective for optimum in findings.optima)
    by_sampler: dict[str, list[str]] = {}
    for optimum in findings.optima:
        by_sampler.setdefault(optimum.sampler, []).append(_error(optimum.max_difference))
    rows = [[f"   {sampler}", *errors] for sampler, errors in by_sampler.items()]
    print_numbers(console, ["2  optimum under", *objectives], rows)
    steps = findings.steps
    numbers = zip(steps.kl, steps.reward, steps.max_difference, strict=True)
    rows = [
        [f"   {number}", f"{kl:.4f}", f"{reward:.4f}", _error(error)]
        for number, (kl, reward, error) in enumerate(numbers, start=1)
    ]
    titles = ("3  steps", "KL from the first policy", "E[R]", "from π' exp(n R / β) / Z")
    print_numbers(console, titles, rows)
    _note(
        "The optimum is the same for every sampler; that of importance-weighted reward with a KL penalty is "
        "the same only for the policy's own samples. n steps reach what one step with β / n does: more KL, "
        "the best reward at it.",
        console,
    )


def _print_preferences(found: PreferenceOptima, console: Console) -> None:
    say(console, "DPO (arXiv 2305.18290) and GVPO on equal data: error of the optimum found", "bold")
    numbers = (found.dpo_on_two, found.gvpo_on_two, found.dpo_on_three, found.gvpo_on_three)
    rows = [
        [f"   {_percent(mass)}", *map(_error, errors)]
        for mass, *errors in zip(found.masses, *numbers, strict=True)
    ]
    titles = ("   π(third answer) at first", "DPO, two answers", "GVPO, two", "DPO, three", "GVPO, three")
    print_numbers(console, titles, rows)
    _note(
        "Whether the optimum is unique depends on coverage, not on the method: with data on two of three "
        "answers any probability of the third is optimal, with data on all three both methods find "
        "π' exp(R / β) / Z.",
        console,
    )


def _note(text: str, console: Console) -> None:
    tell(console, text, "dim")
    console.print()


def _error(value: float) -> str:
    """A relative error: in percent where people would see it, else as a power of ten."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else f"{value:.0e}"


def _with_error(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):+.4f} ± {spread:.4f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
