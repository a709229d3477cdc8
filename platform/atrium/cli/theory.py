"""`atrium theory`: what the theorems say about any methods, computed on a policy that can be enumerated."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.cli.runs_command import CommandParser, standard_output
from atrium.config.presets import Preset, read_preset
from atrium.tracking.atomic import standard_json

if TYPE_CHECKING:
    from atrium.cli.theory_findings import Findings
    from atrium.compare.theory_figures import MethodWindow

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
    parser.add_argument("names", nargs="*", metavar="ALG", help="files of conf/algorithm")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="batches per method (default: 8)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--out", metavar="DIR", help="where to draw (default: runs/figures)")
    parser.add_argument("--no-figures", action="store_true", help="draw nothing")
    if (arguments := parser.parse(list(argv))) is None:
        return 0
    if arguments.seeds < 2:
        parser.error(f"argument --seeds: {arguments.seeds} leaves no spread over seeds; allowed is 2 or more")
    presets = [read_preset(name) for name in dict.fromkeys(arguments.names or DEFAULT)]
    parts = tuple(part for part in PARTS if part in (arguments.only or PARTS))

    from atrium.cli.theory_findings import find  # imports torch, after every mistake has been found
    from atrium.cli.theory_tables import print_findings

    findings = find(presets, parts, num_seeds=arguments.seeds)
    windows = [method_window(preset) for preset in presets] if "windows" in parts else []
    if arguments.json:
        sys.stdout.write(
            json.dumps(standard_json(_described(findings, windows)), indent=2, allow_nan=False) + "\n"
        )
    else:
        print_findings(findings, windows, standard_output())
        sys.stdout.flush()
    if not arguments.no_figures and (arguments.out or not arguments.json):
        drawn = _draw(findings, windows, Path(arguments.out or "runs/figures"))
        if not arguments.json:
            sys.stdout.write("".join(f"drew {path}\n" for path in drawn))
    return 0


def method_window(preset: Preset) -> MethodWindow:
    """A method's window, by the behavior probability where it depends on it."""
    from atrium.compare.theory_figures import MethodWindow

    divergence = preset.divergence
    by_probability = [divergence.window_at(q) for q in _PROBABILITIES]
    found = tuple(window for window in by_probability if window is not None)
    return MethodWindow(
        name=preset.name,
        constant=divergence.window(),
        probabilities=_PROBABILITIES if found else (),
        by_probability=found if divergence.of_single_tokens else (),
    )


def _described(findings: Findings, windows: Sequence[MethodWindow]) -> dict[str, object]:
    found = {**dataclasses.asdict(findings), "windows": [dataclasses.asdict(window) for window in windows]}
    return {name: value for name, value in found.items() if value}


def _draw(findings: Findings, windows: Sequence[MethodWindow], folder: Path) -> list[Path]:
    """The pictures of what was computed."""
    from atrium.compare import outcome_figures as outcomes
    from atrium.compare import theory_figures as figures

    canvas = figures.Canvas(folder, _CACHE)
    drawn: list[Path] = []
    if findings.curves:
        drawn += figures.draw_gradients(findings.curves, canvas)
    if windows:
        drawn += figures.draw_method_windows(windows, canvas)
    if findings.courses:
        drawn += outcomes.draw_updates(findings.courses, findings.bin_edges, canvas)
    if findings.biases:
        drawn += outcomes.draw_bias(findings.biases, findings.faithfulness, canvas)
    if findings.regression is not None:
        drawn += outcomes.draw_regression(findings.regression, canvas)
    return drawn
