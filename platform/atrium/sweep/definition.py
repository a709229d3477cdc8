"""What a sweep is: the typed content of a file in `sweeps/`.

A definition says which question is asked, of which base experiment, over which space, with which
seeds, objective, sampler, pruner and budget. What its space means for runs is in `space`; whether the
runs can be composed is checked in `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atrium.base.section import Count, FolderName, Number, Positive, Section, Seed, Text
from atrium.config.nearest import suggestion
from atrium.runs.curve_outcomes import CurveOutcome

OF_THE_SWEEP = {
    "seed": "every setting runs with each of the sweep's seeds; give seeds=0,1,2",
    "resume": "a sweep resumes when its command is given again; remove it",
    "experiment_name": "runs are filed under the sweep's name; give name=NAME",
    "runs_dir": "all runs are written where the sweep is; give it as a key of the sweep",
}
"""Settings of a run that a sweep chooses itself, and what to do instead."""

Scalar = bool | int | float | str | None
"""What a setting may be swept over."""


class ParameterConfig(Section):
    """The values of one setting: a range (`low`, `high`), or `choices`."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    """Whether the range is searched on a logarithmic scale."""
    step: Positive | None = None
    """The distance between values of a range that is not logarithmic; null for a continuous one."""
    num: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Points of the range on a grid."""
    choices: tuple[Scalar, ...] | None = None
    """The values themselves, where they are no range."""
    when: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """The parameter exists only where each of these others has one of the values."""

    @model_validator(mode="after")
    def _check(self) -> ParameterConfig:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step or self.num:
                raise ValueError("choices stand alone; leave out low, high, log, step and num")
            if not self.choices:
                raise ValueError("choices are empty; give at least one value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if not self.low < self.high:
            raise ValueError(f"the range from low={self.low:g} to high={self.high:g} is empty")
        if self.log and not self.low > 0:
            raise ValueError(f"a logarithmic range begins above 0, not at low={self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step cannot be combined; remove one of them")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether the range holds whole numbers."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return whole and (self.step is None or float(self.step).is_integer())


class DerivedConfig(Section):
    """A value computed from a variable, or from a number, when a trial is made."""

    function: Literal[
        "budget_for_upper", "budget_for_lower", "budget_for_dropped", "one_minus", "one_plus", "equal"
    ]
    of: str | float | int
    """A variable's name, or a number."""
    kind: str = "kl3"
    """The divergence of a budget, where the function gives one."""
    run: Text | None = None
    """The run folder on whose ratios `budget_for_dropped` counts what a clip range drops."""

    @model_validator(mode="after")
    def _check_run(self) -> DerivedConfig:
        if (self.function == "budget_for_dropped") != (self.run is not None):
            raise ValueError("budget_for_dropped needs run, a finished run's folder; no other function does")
        return self


class SpaceConfig(Section):
    """Settings that vary, variables that others are derived from, and named arms."""

    space: dict[str, ParameterConfig] = Field(default_factory=dict)
    """Settings of the composed configuration (groups included) by their dotted names."""
    variables: dict[str, ParameterConfig] = Field(default_factory=dict)
    """What is searched over without being a setting itself."""
    derived: dict[str, DerivedConfig] = Field(default_factory=dict)
    """Settings that follow from variables."""
    arms: dict[str, dict[str, DerivedConfig | Scalar]] = Field(default_factory=dict)
    """Named settings of several keys at once, crossed with the space."""

    @property
    def varies(self) -> bool:
        """Whether there is anything to search over."""
        return bool(self.space or self.variables or self.arms)

    @model_validator(mode="after")
    def _check_names(self) -> SpaceConfig:
        searched = {**self.space, **self.variables}
        for name, parameter in searched.items():
            for other in parameter.when:
                known = [*searched, *(["arm"] if self.arms else [])]
                if other not in known:
                    near = suggestion(other, known)
                    raise ValueError(f"{name} depends on {other}, which does not vary{near}")
        for key, derived in self.derived.items():
            if isinstance(derived.of, str) and derived.of not in self.variables:
                near = suggestion(derived.of, self.variables)
                raise ValueError(f"{key} is derived from {derived.of}, which is no variable{near}")
        return self


class BaselineConfig(SpaceConfig):
    """The setting that the winner is judged against, tuned with as many trials; fixed without a space."""

    base: tuple[str, ...] | None = None
    """Overrides that it starts from; those of the sweep where null."""


class ObjectiveConfig(Section):
    """One number that a trial is judged by, measured on validation problems."""

    metric: Literal["mean_at_k", "pass_at_k", "num_tokens", "entropy", "kl"]
    direction: Literal["maximize", "minimize"] = "maximize"


class SamplerConfig(Section):
    """Which settings are tried. All but the last three are planned before the first trial."""

    kind: Literal["grid", "quasi_random", "random", "tpe", "gp", "nsga2"]
    seed: Seed = 0

    @property
    def is_planned(self) -> bool:
        """Whether the settings do not depend on results."""
        return self.kind in ("grid", "quasi_random", "random")


class PrunerConfig(Section):
    """When a trial is stopped early."""

    curve: Literal["none", "successive_halving", "hyperband", "median"] = "none"
    """Among the curves of all trials' first seeds."""
    min_steps: Count = 1
    """Steps before the first such decision."""
    reduction_factor: Annotated[int, Field(ge=2, le=1000)] = 3
    """One in this many trials passes a rung."""
    between_seeds: Literal["none", "wilcoxon"] = "none"
    """Against the best trial, problem by problem on the seeds that both have."""
    p_value: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Below which a trial counts as worse than the best; a stopping rule, no claim."""
    collapse_steps: Count | None = 10
    """Steps by which a run that collapsed is stopped: no signal, entropy gone, reward below its own start
    (`docs/collapse.md`); at once where numbers are not finite, and never on the fresh seeds of `final`."""


class FinalConfig(Section):
    """The comparison that decides, on seeds that chose neither side."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=2)] = (1000, 1001, 1002, 1003, 1004)
    settings: Literal["winner", "all"] = "winner"
    """Which meet the baseline: the winner, or all, where every setting is a planned contrast."""


class PredictionConfig(Section):
    """What is expected of one outcome of a contrast, in words that can fail."""

    sign: Literal["positive", "negative"]
    """Of the candidate's outcome less the baseline's."""
    size: Number | None = None
    """The difference that is expected, in the outcome's own unit; null where theory gives its sign alone."""


class ContrastConfig(Section):
    """Two arms that are to be compared, and what is predicted of them."""

    candidate: Text
    """An arm's name."""
    baseline: Text
    """The arm whose outcome is taken off."""
    because: Text
    """Why that is expected."""
    predicted: dict[str, PredictionConfig] = Field(default_factory=dict)
    """By outcome; nothing where the two do not differ by construction, so that any difference is chance."""

    @property
    def is_null(self) -> bool:
        """Whether nothing tells the arms apart that could matter."""
        return not self.predicted

    @property
    def name(self) -> str:
        """The contrast in a table."""
        return f"{self.candidate} - {self.baseline}"


class FamiliesConfig(Section):
    """Families of arms, such as a divergence at several widths, compared in `y` at equal `x`."""

    x: Text
    """An outcome, or a setting that every arm of a family gives as a number."""
    y: Text
    """An outcome."""
    baseline: Text
    """The family that the others are compared with."""
    members: Annotated[dict[str, tuple[Text, ...]], Field(min_length=2)]
    """Each family's arms."""
    shares: Annotated[tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...], Field(min_length=1)] = (
        0.25,
        0.5,
        0.75,
    )
    """Where an outcome is `x`: at which shares of the range that all families reach they are compared."""


class TinyConfig(Section):
    """What `budget=tiny` changes: everything runs, nothing can be concluded."""

    overrides: tuple[str, ...] = ("debug=tiny_steps", "tracking.figures=false")
    trials: Count = 4
    num_seeds: Count = 2
    num_final_seeds: Annotated[int, Field(ge=2, le=1000)] = 2


class SweepDefinition(SpaceConfig):
    """A whole sweep."""

    name: FolderName
    question: Text
    base: tuple[str, ...]
    """Overrides that all trials share."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    objectives: Annotated[tuple[ObjectiveConfig, ...], Field(min_length=1)] = (
        ObjectiveConfig(metric="mean_at_k"),
    )
    sampler: SamplerConfig = SamplerConfig(kind="grid")
    pruner: PrunerConfig = PrunerConfig()
    trials: Annotated[int, Field(ge=1, le=100_000)]
    """Settings tried; a grid may have fewer."""
    outcomes: dict[str, CurveOutcome] = Field(default_factory=dict)
    """Outcomes of curves by name, the primary one first, in which planned contrasts are judged."""
    predictions: Text | None = None
    """The file beside this one that holds the planned contrasts, with what is predicted of them."""
    contrasts: tuple[ContrastConfig, ...] = ()
    """What that file holds."""
    families: FamiliesConfig | None = None
    """Arms that belong together, for a comparison of families at equal `x`."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Display names in the figures of the report, by arm, family, outcome, metric or setting; the title of a
    picture by its name: curve, ranking, outcomes, batches, families."""
    baseline: BaselineConfig | None = None
    final: FinalConfig | None = None
    tiny: TinyConfig = TinyConfig()
    runs_dir: Text = "runs"
    max_attempts: Count = 3
    """Workers that may die on a trial without any progress before it is given up."""

    @model_validator(mode="after")
    def _check_whole(self) -> SweepDefinition:
        if not self.varies:
            raise ValueError("nothing varies; give a space, variables or arms")
        if len(self.objectives) > 1 and self.pruner.curve != "none":
            raise ValueError(f"pruner.curve={self.pruner.curve} compares one objective; choose none")
        measured = self.objectives[0].metric
        if self.pruner.curve != "none" and measured not in ("mean_at_k", "pass_at_k"):
            raise ValueError(
                f"pruner.curve={self.pruner.curve} follows evaluations, which have no {measured}"
            )
        if self.pruner.between_seeds != "none" and measured != "mean_at_k":
            raise ValueError(f"pruner.between_seeds compares mean_at_k problem by problem, not {measured}")
        if self.final is not None and (self.baseline is None or len(self.objectives) > 1):
            raise ValueError(
                "final compares a winner with a baseline on one objective; leave it out or give both"
            )
        fresh = set(self.final.seeds) & set(self.seeds) if self.final else set()
        if fresh:
            raise ValueError(f"final.seeds={min(fresh)} chose the winner too; choose seeds that are fresh")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds holds a seed twice")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> SweepDefinition:
        lines: list[str] = [*self.base, *self.tiny.overrides]
        parts: list[SpaceConfig] = [self]
        if self.baseline is not None:
            lines += self.baseline.base or ()
            parts.append(self.baseline)
        keys = {line.lstrip("+~").partition("=")[0] for line in lines}
        for part in parts:
            keys |= {*part.space, *part.derived, *(key for arm in part.arms.values() for key in arm)}
        for key in sorted(OF_THE_SWEEP.keys() & keys):
            raise ValueError(f"{key} has no effect on a sweep: {OF_THE_SWEEP[key]}")
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> SweepDefinition:
        """Check that contrasts and families name arms and outcomes of the sweep."""
        named: list[tuple[str, str, Iterable[str], Iterable[str]]] = []
        for contrast in self.contrasts:
            where = f"contrast {contrast.name}"
            named.append((where, "arm", (contrast.candidate, contrast.baseline), self.arms))
            named.append((where, "outcome", contrast.predicted, self.outcomes))
        families, arms = self.families, []
        if families is not None:
            arms = [arm for members in families.members.values() for arm in members]
            named.append(("families", "arm", arms, self.arms))
            named.append(("families", "outcome", [families.y], self.outcomes))
            named.append(("families", "family", [families.baseline], families.members))
        for where, kind, names, allowed in named:
            for name in names:
                if name not in allowed:
                    raise ValueError(f"{where}: {name} is no {kind} of the sweep{suggestion(name, allowed)}")
        if families is not None and families.x not in self.outcomes:
            for arm in arms:
                if type(self.arms[arm].get(families.x)) not in (int, float):
                    raise ValueError(f"families: {families.x} is no outcome, and {arm} gives it no number")
        return self
