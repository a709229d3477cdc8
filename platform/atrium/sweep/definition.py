"""The definition of a sweep: the typed content of a file in `sweeps/`.

A definition states the question, the base experiment, the search space, seeds, objectives, sampler, pruner
and number of trials. The module `space` translates the space into settings of runs. The module `plan` checks
whether the runs can be composed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atrium.base.section import Count, FolderName, Number, Positive, Section, Seed, Text
from atrium.config.nearest import suggestion
from atrium.runs.curve_outcomes import CurveOutcome

OF_THE_SWEEP = {
    "seed": "every configuration runs with each of the sweep's seeds; use seeds=0,1,2",
    "resume": "the same command resumes a sweep; remove the setting",
    "experiment_name": "the sweep's name is the name of the experiment; use name=NAME",
    "runs_dir": "all runs are in the sweep's runs directory; use runs_dir as a key of the sweep",
}
"""Run settings that the sweep determines, with the reason and what to do instead."""

Scalar = bool | int | float | str | None
"""The types of values that a sweep can vary."""


class ParameterConfig(Section):
    """The values of one setting: a range (`low`, `high`), or `choices`."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    """Whether the range is searched on a logarithmic scale."""
    step: Positive | None = None
    """The distance between values of a linear range; null for a continuous range or all integers."""
    num: Annotated[int, Field(ge=2, le=1000)] | None = None
    """The number of points of the range on a grid."""
    choices: tuple[Scalar, ...] | None = None
    """The values to choose from, instead of a range."""
    when: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """Conditions: the parameter exists only if each of these earlier parameters has a given value."""

    @model_validator(mode="after")
    def _check(self) -> ParameterConfig:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step or self.num:
                raise ValueError(
                    "choices cannot be combined with low, high, log, step or num; remove choices or the "
                    "other keys"
                )
            if not self.choices:
                raise ValueError("choices must contain at least one value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("a parameter must have either low and high, or choices; add one of the two")
        if not self.low < self.high:
            raise ValueError(f"low must be less than high, got low={self.low:g} and high={self.high:g}")
        if self.log and not self.low > 0:
            raise ValueError(f"low must be greater than 0 for a logarithmic range, got {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log cannot be combined with step; remove one of them")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether the range contains only integers."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return whole and (self.step is None or float(self.step).is_integer())


class DerivedConfig(Section):
    """A value that is computed from a variable or a number when a trial is created."""

    function: Literal[
        "budget_for_upper", "budget_for_lower", "budget_for_dropped", "one_minus", "one_plus", "equal"
    ]
    of: str | float | int
    """The argument of the function: a variable's name, or a number."""
    kind: str = "kl3"
    """The divergence whose budget the function computes."""
    run: Text | None = None
    """The run directory whose recorded ratios `budget_for_dropped` uses to count clipped tokens."""

    @model_validator(mode="after")
    def _check_run(self) -> DerivedConfig:
        if (self.function == "budget_for_dropped") != (self.run is not None):
            raise ValueError(
                "run must be set for the function budget_for_dropped, and for no other function; set it to "
                "the directory of a finished run, or remove it"
            )
        return self


class SpaceConfig(Section):
    """Settings that vary, variables that other settings are derived from, and named arms."""

    space: dict[str, ParameterConfig] = Field(default_factory=dict)
    """Settings of the composed configuration, including groups, by dotted name."""
    variables: dict[str, ParameterConfig] = Field(default_factory=dict)
    """Searched quantities that are not settings themselves."""
    derived: dict[str, DerivedConfig] = Field(default_factory=dict)
    """Settings that are computed from variables."""
    arms: dict[str, dict[str, DerivedConfig | Scalar]] = Field(default_factory=dict)
    """Named combinations of settings, crossed with the space."""

    @property
    def varies(self) -> bool:
        """Whether the space contains anything to search over."""
        return bool(self.space or self.variables or self.arms)

    @model_validator(mode="after")
    def _check_names(self) -> SpaceConfig:
        searched = {**self.variables, **self.space}
        known = [*searched, *(["arm"] if self.arms else [])]
        for name, parameter in searched.items():
            for other in parameter.when:
                if other not in known:
                    near = suggestion(other, known)
                    raise ValueError(f"{name}.when must name a parameter that varies, got {other}{near}")
        parts: list[Mapping[str, object]] = [self.derived, *self.arms.values()]
        for key, derived in (item for part in parts for item in part.items()):
            of = derived.of if isinstance(derived, DerivedConfig) else None
            if isinstance(of, str) and of not in self.variables:
                near = suggestion(of, self.variables)
                raise ValueError(f"{key}.of must name a variable, got {of}{near}")
        return self


class BaselineConfig(SpaceConfig):
    """The baseline of the final comparison: a fixed setting, or the best setting of its own search.

    The search of a tuned baseline has the same limit `trials` as the search for the winner. If it is a grid,
    it may have fewer points than the search for the winner.
    """

    base: tuple[str, ...] | None = None
    """The overrides that all trials of the baseline share; null for the `base` of the sweep."""


class ObjectiveConfig(Section):
    """A number by which trials are ranked.

    `mean_at_k` and `pass_at_k` are measured on validation problems, and all other metrics during training.
    """

    metric: Literal["mean_at_k", "pass_at_k", "num_tokens", "entropy", "kl"]
    direction: Literal["maximize", "minimize"] = "maximize"


class SamplerConfig(Section):
    """The method of choosing settings to try.

    The kinds `grid`, `quasi_random` and `random` choose all settings in advance.
    """

    kind: Literal["grid", "quasi_random", "random", "tpe", "gp", "nsga2"]
    seed: Seed = 0

    @property
    def is_planned(self) -> bool:
        """Whether all settings are chosen in advance, so that they do not depend on results."""
        return self.kind in ("grid", "quasi_random", "random")


class PrunerConfig(Section):
    """The rules for stopping a trial early."""

    curve: Literal["none", "successive_halving", "hyperband", "median"] = "none"
    """The rule that compares the evaluation curves of all trials' first seeds."""
    min_steps: Count = 1
    """Training steps before the first decision by `curve`."""
    reduction_factor: Annotated[int, Field(ge=2, le=1000)] = 3
    """Factor by which each rung of successive halving or Hyperband reduces the number of trials."""
    between_seeds: Literal["none", "wilcoxon"] = "none"
    """The test, over problems, that compares a trial with the best one after each seed, on common seeds."""
    p_value: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """The p value below which a trial counts as worse than the best; a stopping rule, not a claim."""
    collapse_steps: Count | None = 10
    """Maximum number of steps that a collapse lasts before the run is stopped: no signal, vanished
    entropy, or reward below its start (`docs/collapse.md`); null never stops a collapsed run. A run with
    non-finite numbers stops at once; runs on the fresh seeds of `final` are never stopped."""


class FinalConfig(Section):
    """The final comparison, on seeds that selected neither the winner nor the baseline."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=2)] = (1000, 1001, 1002, 1003, 1004)
    settings: Literal["winner", "all"] = "winner"
    """The settings that are compared with the baseline: the winner, or all complete trials of the search."""


class PredictionConfig(Section):
    """A falsifiable prediction for one outcome of a contrast."""

    sign: Literal["positive", "negative"]
    """The predicted sign of the candidate's outcome minus the baseline's."""
    size: Number | None = None
    """The predicted difference in the unit of the outcome; null if theory predicts only the sign."""


class ContrastConfig(Section):
    """Two arms to compare, and the predictions for their difference."""

    candidate: Text
    """The name of an arm."""
    baseline: Text
    """The arm whose outcome is subtracted."""
    because: Text
    """The reason for the prediction."""
    predicted: dict[str, PredictionConfig] = Field(default_factory=dict)
    """Predictions by outcome. A null contrast, whose arms are equivalent by construction, has none."""

    @property
    def is_null(self) -> bool:
        """Whether the arms are equivalent, which is the case if the contrast has no predictions."""
        return not self.predicted

    @property
    def name(self) -> str:
        """The name of the contrast, `candidate - baseline`."""
        return f"{self.candidate} - {self.baseline}"


class FamiliesConfig(Section):
    """Families of arms, such as one divergence with windows of several widths.

    The values of `y` of different families are compared at equal values of `x`.
    """

    x: Text
    """An outcome, or a setting that is a number in each arm of a family."""
    y: Text
    """An outcome."""
    baseline: Text
    """The family that the others are compared with."""
    members: Annotated[dict[str, tuple[Text, ...]], Field(min_length=2)]
    """The arms of each family."""
    shares: Annotated[tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...], Field(min_length=1)] = (
        0.25,
        0.5,
        0.75,
    )
    """If `x` is an outcome: the positions in the common range of x, 0 to 1, where families are compared."""


class TinyConfig(Section):
    """The changes that `budget=tiny` makes to a sweep.

    The changed sweep runs all of its parts in a few minutes, but supports no conclusion.
    """

    overrides: tuple[str, ...] = ("debug=tiny_steps", "tracking.figures=false")
    trials: Count = 4
    num_seeds: Count = 2
    num_final_seeds: Annotated[int, Field(ge=2, le=1000)] = 2


class SweepDefinition(SpaceConfig):
    """The definition of a whole sweep."""

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
    """The number of settings to try; a grid may have fewer."""
    outcomes: dict[str, CurveOutcome] = Field(default_factory=dict)
    """Outcomes of curves by name, for planned contrasts; the first is the primary one."""
    predictions: Text | None = None
    """The name of the file, in the same folder, with the planned contrasts and their predictions."""
    contrasts: tuple[ContrastConfig, ...] = ()
    """The content of the `predictions` file."""
    families: FamiliesConfig | None = None
    """Families of arms, compared at equal `x`."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Display names in the figures of the report, by arm, family, outcome, metric or setting; or titles of
    pictures, by picture (curve, ranking, outcomes, batches, families)."""
    baseline: BaselineConfig | None = None
    final: FinalConfig | None = None
    tiny: TinyConfig = TinyConfig()
    runs_dir: Text = "runs"
    max_attempts: Count = 3
    """The number of workers that may die on a trial without any progress before the trial fails."""

    @model_validator(mode="after")
    def _check_whole(self) -> SweepDefinition:
        if not self.varies:
            raise ValueError("a sweep must vary at least one setting; add a space, variables or arms")
        if len(self.objectives) > 1 and self.pruner.curve != "none":
            raise ValueError(f"pruner.curve must be none with several objectives, got {self.pruner.curve}")
        measured = self.objectives[0].metric
        if self.pruner.curve != "none" and measured not in ("mean_at_k", "pass_at_k"):
            raise ValueError(
                f"pruner.curve={self.pruner.curve} cannot be used with the objective {measured}, which "
                "evaluations do not measure; choose pruner.curve=none"
            )
        if self.pruner.between_seeds != "none" and measured != "mean_at_k":
            raise ValueError(
                f"pruner.between_seeds must be none for the objective {measured}, got "
                f"{self.pruner.between_seeds}"
            )
        if self.final is not None and (self.baseline is None or len(self.objectives) > 1):
            raise ValueError(
                "final requires a baseline and a single objective; add a baseline, keep one objective, "
                "or remove final"
            )
        fresh = set(self.final.seeds) & set(self.seeds) if self.final else set()
        if fresh:
            raise ValueError(
                f"final.seeds must not contain seeds of the search, got {min(fresh)}; choose other seeds"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different, got {', '.join(map(str, self.seeds))}")
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
            raise ValueError(f"{key} cannot be set in a sweep: {OF_THE_SWEEP[key]}")
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> SweepDefinition:
        """Raise `ValueError` if a contrast or the families refer to an unknown arm, outcome or family.

        If `families.x` is not an outcome, it must be a setting that is a number in each arm.
        """
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
                    raise ValueError(f"{where}: unknown {kind} {name}{suggestion(name, allowed)}")
        if families is not None and families.x not in self.outcomes:
            for arm in arms:
                if type(self.arms[arm].get(families.x)) not in (int, float):
                    raise ValueError(
                        f"families.x={families.x} must name an outcome, or a setting that is a number in "
                        f"each arm, but it is not a number in {arm}; choose another x"
                    )
        return self
