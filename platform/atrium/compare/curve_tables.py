"""Comparisons of training curves as tables of text, in the outcomes' own units."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from atrium.compare.arm_curves import ArmCeilings, ArmCurves
from atrium.compare.curve_contrasts import CurveContrast
from atrium.compare.report_tables import NOTHING, ReportTable


def outcome_table(found: ArmCurves, *, has_intervals: bool) -> ReportTable:
    """Each arm's mean over seeds, and its difference from the first arm."""
    rows = [
        (
            name,
            str(len(value_by_seed)),
            f"{np.mean(list(value_by_seed.values())):.4g}",
            *_contrast_cells(found.contrasts.get(name), "{:+.4g}".format, has_intervals),
            _compared_seeds(found, name),
        )
        for name, value_by_seed in found.values.items()
    ]
    return ReportTable(
        title=f"Training: {found.outcome.words}, against {next(iter(found.values))}"
        + _together(len(found.contrasts)),
        columns=("arm", "seeds", "mean", "difference", "interval over seeds", "compared seeds"),
        rows=tuple(rows),
    )


def ceiling_table(found: ArmCeilings, *, has_intervals: bool) -> ReportTable:
    """How many curves show their ceiling; where all do, ceilings and the tokens at half way, compared."""
    rows = []
    for name, fit_by_seed in found.fits.items():
        known = [fit for fit in fit_by_seed.values() if fit is not None and fit.is_known]
        midpoint = math.exp(np.mean([math.log(fit.midpoint) for fit in known])) if known else None
        rows.append(
            (
                name,
                f"{len(known)} of {len(fit_by_seed)}",
                f"{np.mean([fit.ceiling for fit in known]):.3f}" if known else "not known",
                *_contrast_cells(found.ceilings.get(name), "{:+.3f}".format, has_intervals),
                "not known" if midpoint is None else f"{midpoint:,.0f}",
                *_contrast_cells(found.log_midpoints.get(name), _ratio_text, has_intervals),
                _compared_seeds(found, name),
            )
        )
    return ReportTable(
        title=f"Learning curve of {found.metric} by tokens, fitted per seed: its ceiling, and the tokens at "
        f"half way, against {next(iter(found.fits))}{_together(len(found.fits) - 1)}",
        columns=(
            "arm",
            "curves that show a ceiling",
            "ceiling",
            "difference",
            "interval",
            "tokens at half way",
            "ratio",
            "its interval",
            "compared seeds",
        ),
        rows=tuple(rows),
    )


def _ratio_text(log: float) -> str:
    return f"x {math.exp(log):.2f}"


def _contrast_cells(
    contrast: CurveContrast | None, text: Callable[[float], str], has_interval: bool
) -> tuple[str, str]:
    """A difference and its interval."""
    if contrast is None:
        return NOTHING, NOTHING
    interval = contrast.interval if has_interval else None
    ends = NOTHING if interval is None else f"[{text(interval.low)}, {text(interval.high)}]"
    return text(contrast.difference), ends


def _compared_seeds(found: ArmCurves | ArmCeilings, name: str) -> str:
    return found.pairings[name].words if name in found.pairings else NOTHING


def _together(num_candidates: int) -> str:
    return f"; 95 % over {num_candidates} candidates (Bonferroni)" if num_candidates > 1 else ""
