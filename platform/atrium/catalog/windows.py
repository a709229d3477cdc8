"""Computations of `atrium windows`: windows at budgets, matching budgets and coinciding windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atrium.base.errors import ConfigError
from atrium.catalog.axes import axes
from atrium.config.method_files import resolve_divergence
from atrium.config.presets import Preset, divergence_from, names, read_divergence
from atrium.method.divergences import AlphaDivergence, BudgetDivergence, Divergence, NoDivergence
from atrium.method.windows import MAX_UPPER, Window
from atrium.method.words import kind_text

PROBABILITIES = (0.01, 0.1, 0.3, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A divergence at a budget.

    `name` is the name of the divergence's file, or the divergence's kind if `arms_at` created the arm.
    `named_arms` appends the budget to the name, unless the budget comes from the file.
    """

    name: str
    config: Divergence

    @property
    def window(self) -> Window | None:
        """The window shared by all tokens, or None if there is none."""
        return self.config.window()

    @property
    def delta(self) -> float | None:
        """The budget of a divergence of the ratio, or None for other divergences."""
        config = self.config
        return config.delta if isinstance(config, BudgetDivergence | AlphaDivergence) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The budgets at which a divergence's window shares one bound with a clip range [l, u].

    At `budget_at_upper`, the window is [`lower`, u]. At `budget_at_lower`, it is [l, `upper`].
    `budget_at_upper` and `lower` are None for a divergence whose window has no upper bound.
    """

    name: str
    budget_at_upper: float | None
    lower: float | None
    budget_at_lower: float
    upper: float


def shipped_arms() -> list[Arm]:
    """Return an arm for each file of `conf/divergence`, at its own budget."""
    return [Arm(name=name, config=read_divergence(name)) for name in names("divergence")]


def arms_at(budget: float) -> list[Arm]:
    """Return an arm for each kind of divergence that has a budget, at `budget`.

    Raises `ConfigError` if a divergence does not allow this budget.
    """
    chosen: dict[str, Arm] = {}
    for arm in shipped_arms():
        config = _at_budget(arm.config, arm.name, budget)
        if config is not None and arm.config.kind not in chosen:
            chosen[arm.config.kind] = Arm(name=arm.config.kind, config=config)
    return list(chosen.values())


def named_arms(specs: Sequence[str], budget: float | None) -> list[Arm]:
    """Return the arms for specifications of the form `NAME` or `NAME=BUDGET[,BUDGET...]`.

    If a specification has no budget, `budget` is used. If that is None, the budget in the divergence's file
    is used. Raises `ConfigError` for an unknown name, for an invalid budget, and if a divergence that has no
    budget is given one.
    """
    found = []
    for spec in specs:
        source, has_budgets, texts = spec.partition("=")
        name, shipped = resolve_divergence(source)
        budgets = [parse_budget(text, spec) for text in texts.split(",")] if has_budgets else [budget]
        for value in budgets:
            config = shipped if value is None else _at_budget(shipped, name, value)
            if config is None:
                raise ConfigError(
                    f"{spec}: divergence {name} has no budget, so none can be given; give only its name, or "
                    "choose one of "
                    f"{', '.join(arm.name for arm in shipped_arms() if arm.config.with_budget(1.0))}"
                )
            found.append(Arm(name=name if value is None else f"{name} {value:g}", config=config))
    return found


def parse_budget(text: str, where: str) -> float:
    """Parse a budget; raise `ConfigError` unless it is a finite number above 0.

    `where` is the start of the error message.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ConfigError(
            f"{where}: the budget must be a number greater than 0, such as 0.02, got {text or 'nothing'}"
        )
    return value


def _at_budget(config: Divergence, name: str, budget: float) -> Divergence | None:
    """Return the divergence at another budget, or None for a divergence without a budget."""
    changed = config.with_budget(budget)
    return None if changed is None else divergence_from(changed, f"divergence={name} at budget {budget}")


def matches(clip: Window) -> list[Match]:
    """Return the budgets at which a divergence has a window with the same lower or upper bound as `clip`.

    There is one result for each shipped kind of divergence that is a function of the ratio alone. Raises
    `ConfigError` if the upper bound of `clip` exceeds `MAX_UPPER`.
    """
    if clip.upper > MAX_UPPER:
        raise ConfigError(f"--clip LOW HIGH: HIGH must be at most {MAX_UPPER - 1:g}, got {clip.upper - 1:g}")
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
    """Return the groups of at least two names with the same window (arXiv 2602.05494, Theorem 4.2).

    Windows are the same if both bounds agree to ten significant digits.
    """
    classes: dict[tuple[str, str], list[str]] = {}
    for name, window in named:
        if window is not None:
            classes.setdefault(window.digits, []).append(name)
    return [members for members in classes.values() if len(members) > 1]


def families(presets: Sequence[Preset]) -> list[list[Preset]]:
    """Return the groups of at least two methods that differ only in their constant windows."""
    found: dict[str, list[Preset]] = {}
    for preset in presets:
        if preset.divergence.fixed_window() is not None:
            rest = replace(preset.method, divergence=NoDivergence())
            key = repr((rest.key(), axes(preset)["rollouts"]))
            found.setdefault(key, []).append(preset)
    return [members for members in found.values() if len(members) > 1]


def described(arms: Sequence[Arm]) -> list[dict[str, object]]:
    """Return the arms as JSON values, the output of `atrium windows --json`."""
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
