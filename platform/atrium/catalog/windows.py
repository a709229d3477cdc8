"""What `atrium windows` says, as records: windows at budgets, matched budgets, windows that coincide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atrium.base.errors import ConfigError
from atrium.catalog.axes import axes
from atrium.config.method_files import resolve_divergence
from atrium.config.presets import Preset, divergence_from, names, read_divergence
from atrium.method.divergences import AlphaDivergence, BudgetDivergence, Divergence, NoDivergence
from atrium.method.windows import Window
from atrium.method.words import kind_text

PROBABILITIES = (0.01, 0.1, 0.3, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A divergence at a budget. `name` is its file's, with the budget where that was asked for."""

    name: str
    config: Divergence

    @property
    def window(self) -> Window | None:
        """The window that holds for all tokens, if there is one."""
        return self.config.window()

    @property
    def delta(self) -> float | None:
        """The budget, where the divergence is a function of the ratio."""
        config = self.config
        return config.delta if isinstance(config, BudgetDivergence | AlphaDivergence) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The budgets of one divergence that share a bound with a clip range, and the other bound then."""

    name: str
    budget_at_upper: float | None
    lower: float | None
    budget_at_lower: float
    upper: float


def shipped_arms() -> list[Arm]:
    """Every file of `conf/divergence` at its own budget."""
    return [Arm(name=name, config=read_divergence(name)) for name in names("divergence")]


def arms_at(budget: float) -> list[Arm]:
    """Every kind of divergence that has a budget, at this one."""
    chosen: dict[str, Arm] = {}
    for arm in shipped_arms():
        config = _at_budget(arm.config, arm.name, budget)
        if config is not None and arm.config.kind not in chosen:
            chosen[arm.config.kind] = Arm(name=arm.config.kind, config=config)
    return list(chosen.values())


def named_arms(specs: Sequence[str], budget: float | None) -> list[Arm]:
    """The arms that `NAME` or `NAME=BUDGET[,BUDGET...]` describe; `budget` is for those without their own."""
    found = []
    for spec in specs:
        source, has_budgets, texts = spec.partition("=")
        name, shipped = resolve_divergence(source)
        budgets = [parse_budget(text, spec) for text in texts.split(",")] if has_budgets else [budget]
        for value in budgets:
            config = shipped if value is None else _at_budget(shipped, name, value)
            if config is None:
                raise ConfigError(
                    f"{spec}: divergence {name} has no budget; use its name alone, or one of "
                    f"{', '.join(arm.name for arm in shipped_arms() if arm.config.with_budget(1.0))}"
                )
            found.append(Arm(name=name if value is None else f"{name} {value:g}", config=config))
    return found


def parse_budget(text: str, where: str) -> float:
    """A budget from what was typed. Raises `ConfigError` for what is no number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ConfigError(f"{where}: {text or 'nothing'} is not a budget; use a number above 0, such as 0.02")
    return value


def _at_budget(config: Divergence, name: str, budget: float) -> Divergence | None:
    """The divergence at another budget; None where it has none."""
    changed = config.with_budget(budget)
    return None if changed is None else divergence_from(changed, f"divergence={name} at budget {budget}")


def matches(clip: Window) -> list[Match]:
    """Per divergence that is a function of the ratio: the budgets that share a bound with the clip range."""
    found: dict[str, Match] = {}
    for config in (arm.config for arm in shipped_arms()):
        if (function := config.of_ratio) is not None and config.kind not in found:
            below = function.value(clip.lower)
            above = function.value(clip.upper) if function.binds_above else None
            found[config.kind] = Match(
                name=f"alpha (a = {config.alpha:g})" if isinstance(config, AlphaDivergence) else config.kind,
                budget_at_upper=above,
                lower=None if above is None else function.window(above).lower,
                budget_at_lower=below,
                upper=function.window(below).upper,
            )
    return list(found.values())


def coinciding(named: Iterable[tuple[str, Window | None]]) -> list[list[str]]:
    """The names whose windows are the same, where two or more are (arXiv 2602.05494, Theorem 4.2)."""
    classes: dict[tuple[str, str], list[str]] = {}
    for name, window in named:
        if window is not None:
            classes.setdefault(window.digits, []).append(name)
    return [members for members in classes.values() if len(members) > 1]


def families(presets: Sequence[Preset]) -> list[list[Preset]]:
    """Methods that are equal but for their windows, where two or more are; each a list of points (l, u)."""
    found: dict[str, list[Preset]] = {}
    for preset in presets:
        if preset.divergence.fixed_window() is not None:
            rest = replace(preset.method, divergence=NoDivergence())
            key = repr((rest.key(), axes(preset)["rollouts"]))
            found.setdefault(key, []).append(preset)
    return [members for members in found.values() if len(members) > 1]


def described(arms: Sequence[Arm]) -> list[dict[str, object]]:
    """The arms as `--json` gives them."""
    return [
        {
            "name": arm.name,
            "divergence": arm.config.model_dump(mode="json"),
            "text": kind_text(arm.config),
            "window": _bounds(arm.window),
            "curvature": None if arm.config.of_ratio is None else arm.config.of_ratio.curvature,
            "by_probability": (
                {f"{q:g}": _bounds(arm.config.window_at(q)) for q in PROBABILITIES}
                if arm.config.has_token_windows
                else None
            ),
        }
        for arm in arms
    ]


def _bounds(window: Window | None) -> list[float] | None:
    return None if window is None else [window.lower, window.upper]
