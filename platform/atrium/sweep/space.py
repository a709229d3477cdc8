"""Search spaces: the assignments in a space, and the settings and overrides of an assignment.

An assignment gives each active parameter a value. Parameters are assigned in the order of `parameters`, so a
condition can refer only to earlier parameters (`read_definition` checks this). This module has no side
effects, does not use Optuna, and does not compose configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from atrium.base.errors import ConfigError
from atrium.config.own_files import override_text
from atrium.method.windows import DIVERGENCES, budget_for_lower, budget_for_upper
from atrium.sweep.definition import DerivedConfig, ParameterConfig, Scalar, SpaceConfig
from atrium.sweep.dropped_tokens import budget_for_dropped, ratios_of_run

ARM = "arm"
"""The name of the parameter that chooses an arm."""
_DEFAULT_GRID = 5

Assignment = dict[str, Scalar]


def parameters(space: SpaceConfig) -> dict[str, ParameterConfig]:
    """Return all parameters by name: the arm first, then variables, then settings."""
    arm = {ARM: ParameterConfig(choices=tuple(space.arms))} if space.arms else {}
    return {**arm, **space.variables, **space.space}


def assign(space: SpaceConfig, choose: Callable[[str, ParameterConfig], Scalar]) -> Assignment:
    """Return an assignment in which the value of each active parameter is `choose(name, parameter)`."""
    chosen: Assignment = {}
    for name, parameter in parameters(space).items():
        if is_active(parameter, chosen):
            chosen[name] = choose(name, parameter)
    return chosen


def is_active(parameter: ParameterConfig, chosen: Mapping[str, Scalar]) -> bool:
    """Return whether the conditions of a parameter hold for the values chosen before it."""
    return all(other in chosen and chosen[other] in values for other, values in parameter.when.items())


def grid(space: SpaceConfig) -> Iterator[Assignment]:
    """Yield every combination of the active parameters' grid points. The last parameter varies fastest."""
    names = parameters(space)

    def expand(remaining: Sequence[str], chosen: Assignment) -> Iterator[Assignment]:
        if not remaining:
            yield dict(chosen)
            return
        name, *rest = remaining
        if not is_active(names[name], chosen):
            yield from expand(rest, chosen)
            return
        for value in grid_points(names[name]):
            yield from expand(rest, {**chosen, name: value})

    yield from expand([*names], {})


def grid_points(parameter: ParameterConfig) -> list[Scalar]:
    """Return the values of a parameter on a grid.

    For a parameter with choices, these are the choices. Without `num`, a range with a `step` has all of its
    steps, and a linear range of integers all of its integers. Any other range has `num` points (default: 5),
    spaced evenly on the parameter's scale. Equal points are returned once.
    """
    if parameter.choices is not None:
        return list(parameter.choices)
    low, high = bounds(parameter)
    if parameter.num is None and (parameter.step is not None or (parameter.is_integer and not parameter.log)):
        step = parameter.step or 1
        count = math.floor((high - low) / step + 1e-9) + 1
        return [_rounded(parameter, low + index * step) for index in range(count)]
    num = parameter.num or _DEFAULT_GRID
    points = np.geomspace(low, high, num) if parameter.log else np.linspace(low, high, num)
    return list(dict.fromkeys(_rounded(parameter, float(point)) for point in points))


def from_unit(parameter: ParameterConfig, unit: float) -> Scalar:
    """Return the value at the relative position `unit` (0 <= unit < 1) in a parameter's choices or range.

    Positions in a range are measured on the parameter's scale.
    """
    if parameter.choices is not None:
        return parameter.choices[min(int(unit * len(parameter.choices)), len(parameter.choices) - 1)]
    low, high = bounds(parameter)
    if parameter.is_integer and not parameter.log:
        # Each integer, or each step, gets an equal share.
        step = float(parameter.step or 1)
        count = math.floor((high - low) / step + 1e-9) + 1
        return int(low + step * min(int(unit * count), count - 1))
    if parameter.log:
        return _rounded(parameter, math.exp(math.log(low) + unit * (math.log(high) - math.log(low))))
    return _rounded(parameter, low + unit * (high - low))


def unit_points(num_dimensions: int, num: int, *, kind: str, seed: int) -> list[list[float]]:
    """Return `num` points of the unit cube.

    If `kind` is `quasi_random`, they are the start of a scrambled Sobol sequence. Otherwise, they are
    random points.
    """
    if kind == "quasi_random":
        from scipy.stats import qmc  # 0.4 s

        power = max(math.ceil(math.log2(num)), 0)
        points = qmc.Sobol(num_dimensions, seed=seed).random_base2(power)[:num]
    else:
        points = np.random.default_rng(seed).random((num, num_dimensions))
    return [[float(value) for value in row] for row in points]


def planned(space: SpaceConfig, *, kind: str, num: int, seed: int) -> list[Assignment]:
    """Return at most `num` assignments, chosen in advance by a sampler that does not use results.

    A grid of more than `num` points is thinned evenly. Its first and last points are kept.
    """
    if kind == "grid":
        points = list(grid(space))
        if len(points) <= num:
            return points
        kept = sorted({round(index) for index in np.linspace(0, len(points) - 1, num)})
        return [points[index] for index in kept]
    names = [*parameters(space)]
    assignments = []
    for unit in unit_points(len(names), num, kind=kind, seed=seed):
        share = dict(zip(names, unit, strict=True))
        assignments.append(assign(space, lambda name, one, share=share: from_unit(one, share[name])))  # type: ignore[misc]
    return assignments


def corners(space: SpaceConfig) -> Iterator[tuple[str, Assignment]]:
    """Yield a pair (parameter name, assignment) for each choice or range end of every parameter.

    In the assignment, the named parameter has this value. Every other active parameter has its first choice
    or its lower end. The exceptions are the parameters to which the conditions of the named parameter refer,
    directly or indirectly: they have the first value that satisfies the condition.
    """
    names = parameters(space)
    for name, parameter in names.items():
        ends = parameter.choices if parameter.choices is not None else (parameter.low, parameter.high)
        for value in ends:
            fixed: Assignment = {name: value}
            _satisfy(names, name, fixed)
            yield (
                name,
                assign(space, lambda other, one, fixed=fixed: fixed.get(other, _first(one))),  # type: ignore[misc]
            )


def _satisfy(names: Mapping[str, ParameterConfig], name: str, fixed: Assignment) -> None:
    for other, values in names[name].when.items():
        if other not in fixed:
            fixed[other] = values[0]
            _satisfy(names, other, fixed)


def _first(parameter: ParameterConfig) -> Scalar:
    return parameter.choices[0] if parameter.choices is not None else parameter.low


def settings_of(space: SpaceConfig, assignment: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings of an assignment: its own, those of its arm, and those derived from variables.

    The assignment's own settings take precedence over derived settings, and derived settings over those of
    the arm. Raises `ConfigError` if a value cannot be derived.
    """
    settings: dict[str, Scalar] = {}
    arm = assignment.get(ARM)
    own = space.arms[arm] if space.arms and isinstance(arm, str) else {}
    for key, value in (*own.items(), *space.derived.items()):
        if not isinstance(value, DerivedConfig):
            settings[key] = value
        elif not isinstance(value.of, str) or value.of in assignment:
            settings[key] = derive(key, value, assignment)
    for key in space.space:
        if key in assignment:
            settings[key] = assignment[key]
    return settings


def derive(key: str, derived: DerivedConfig, assignment: Mapping[str, Scalar]) -> float:
    """Return the value of a derived setting; raise `ConfigError` if it cannot be computed."""
    value = assignment[derived.of] if isinstance(derived.of, str) else derived.of
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key}: the argument of {derived.function} must be a number, got {value!r}")
    if derived.kind not in DIVERGENCES and derived.function.startswith("budget"):
        raise ConfigError(
            f"{key}: kind must be one of {', '.join(DIVERGENCES)}, which have a constant window, got "
            f"{derived.kind}"
        )
    try:
        if derived.run is not None:
            return budget_for_dropped(derived.kind, float(value), ratios_of_run(derived.run))
        return _FUNCTIONS[derived.function](derived.kind, float(value))
    except ConfigError as error:
        raise ConfigError(f"{key} cannot be derived: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{key} cannot be derived as {derived.function} of {value:g}: {error}") from error


def overrides_of(settings: Mapping[str, Scalar]) -> list[str]:
    """Return settings as command-line overrides, in the same order."""
    return [f"{key}={override_text(value)}" for key, value in settings.items()]


def bounds(parameter: ParameterConfig) -> tuple[float, float]:
    """Return the ends of a parameter's range."""
    assert parameter.low is not None
    assert parameter.high is not None
    return float(parameter.low), float(parameter.high)


def _rounded(parameter: ParameterConfig, value: float) -> float | int:
    """Return the value of the parameter that is nearest to `value`, within the range.

    With a step, it is `low` plus a multiple of `step`. Without a step, it is an integer for an integer
    parameter, and otherwise a number rounded to six significant digits.
    """
    low, high = bounds(parameter)
    if parameter.step is not None:
        last = math.floor((high - low) / parameter.step + 1e-9)
        value = low + min(round((value - low) / parameter.step), last) * parameter.step
    if parameter.is_integer:
        return round(min(max(value, low), high))
    if parameter.step is not None:
        return min(max(float(f"{value:.12g}"), low), high)
    return min(max(float(f"{value:.6g}"), low), high)


_FUNCTIONS: Mapping[str, Callable[[str, float], float]] = {
    "budget_for_upper": budget_for_upper,
    "budget_for_lower": budget_for_lower,
    "one_minus": lambda _, value: 1.0 - value,
    "one_plus": lambda _, value: 1.0 + value,
    "equal": lambda _, value: value,
}
