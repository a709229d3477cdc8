"""A method: a choice on every axis, what it needs, what goes together, and what it is the same as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite, log, sqrt
from typing import Any

from atrium.base.section import Section
from atrium.method.algorithm import Algorithm
from atrium.method.checks import check_anchors, check_parts
from atrium.method.combinations import BySign
from atrium.method.divergences import Divergence, ExplicitWindow
from atrium.method.needs import NOTHING, Anchor, Needs, Use
from atrium.method.regularizers import Regularizer
from atrium.method.surrogates import Reinforce, SignedWeightClip, WeightClip
from atrium.method.words import describe

SECTIONS = ("algorithm", "divergence", "regularizer")
"""The sections of a run that its method consists of."""
BFLOAT16_NOISE = 0.02
"""Nats by which a token's log-probability differs on average between passes in float32 and in bfloat16, on
text with SmolLM2-135M-Instruct; engines and trainers in bfloat16 differ by .01 to .02."""


@dataclass(frozen=True)
class Method:
    """The three sections of a run that together are its method."""

    algorithm: Algorithm
    divergence: Divergence
    regularizer: Regularizer = Regularizer()

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Method | None:
        """The method of a recorded `config.json`; None where a part is unknown here.

        A run of another version, or with a plugin that is missing, is then known by its text alone.
        """
        try:
            return cls(
                Algorithm.model_validate(settings["algorithm"]),
                Divergence.build(**settings["divergence"]),
                Regularizer.model_validate(settings["regularizer"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def with_parts(self, **parts: Section) -> Method:
        """The same method with other choices on axes of its algorithm, by their names."""
        return replace(self, algorithm=self.algorithm.model_copy(update=parts))

    @property
    def needs(self) -> Needs:
        """The union of what the parts need."""
        chosen = self.algorithm
        parts = [part.needs for part in self.regularizer.parts]
        parts += [self.divergence.needs, chosen.surrogate.needs, chosen.reduction.needs]
        parts += [chosen.token_weight.needs, chosen.correction.needs]
        parts += [chosen.ratio.gate.needs, chosen.ratio.weight.needs]
        compared = {policy for step in chosen.correction.steps for policy in step.compares or ()}
        parts.append(Needs(prepare_pass=chosen.prepares_correction and "current" in compared))
        return reduce(Needs.__or__, parts, NOTHING)

    def check(self, use: Use) -> None:
        """Raise `ConfigError` for parts that cannot go together, or of which one has no effect here."""
        check_parts(self.algorithm, self.divergence, self.regularizer, use)
        check_anchors(self.algorithm, use)

    def notes(self, use: Use) -> list[str]:
        """Notes for the user about choices that are valid but do less than they seem to."""
        notes = []
        if not use.is_stale and {"proximal", "behavior"} <= self.anchors:
            notes = [
                "rollout.lag=0: the policy at the start of the step has sampled, so the anchors proximal and "
                "behavior are one"
            ]
        if not self.is_idle(use):
            return notes + self._rounding_notes(use)
        gate = use.names(self.algorithm.ratio.gate.anchor)
        return [
            *notes,
            f"one update per batch: the policy is still the {gate} policy, every ratio to it is 1, and "
            f"divergence={self.divergence.kind} cuts nothing",
        ]

    def _rounding_notes(self, use: Use) -> list[str]:
        noise, level = self._rounding_noise(use)
        window = self.divergence.window()
        if window is None or not min(log(window.upper), -log(max(window.lower, 1e-300))) < noise:
            return []
        if self.algorithm.ratio.gate.anchor == "behavior" and not use.reads_stored:
            remedy = "compute.behavior_logprobs=recompute compares the trainer with itself"
        else:
            remedy = "compute.dtype=float32 rounds less"
        return [
            f"compute.dtype=bfloat16 moves log-ratios of engine and trainer by about {noise:.2g} nats "
            f"{level}, more than the window [{window.lower:.6g}, {window.upper:.6g}] allows, so rounding "
            f"alone cuts; {remedy}"
        ]

    def _rounding_noise(self, use: Use) -> tuple[float, str]:
        """What bfloat16 moves the gate's log-ratio by, and of what; 0 where both sides round alike."""
        gate = self.algorithm.ratio.gate
        is_engine = use.behavior_logprobs == "engine" or use.reads_stored
        anchor = use.names(gate.anchor)
        compares_engine = anchor == "rollout" or (anchor == "behavior" and is_engine)
        if use.dtype != "bfloat16" or gate.level == "none" or not compares_engine:
            return 0.0, ""
        if gate.level == "token":
            return BFLOAT16_NOISE, "per token"
        root = sqrt(use.max_length)
        by_level = {"sequence_mean": BFLOAT16_NOISE / root, "sequence": BFLOAT16_NOISE * root}
        return by_level[gate.level], f"on sequences of {use.max_length:,} tokens"

    @property
    def anchors(self) -> frozenset[Anchor]:
        """The policies that the method's parts take log-probabilities against, a reference aside."""
        chosen = self.algorithm
        found: list[Anchor] = [
            ratio.anchor for ratio in (chosen.ratio.gate, chosen.ratio.weight) if ratio.level != "none"
        ]
        for step in chosen.correction.steps:
            found += [policy for policy in step.compares or () if policy != "current"]
        if chosen.token_weight.kind != "all":
            found.append(chosen.token_weight.anchor)
        found += [kl.anchor for kl in self.regularizer.penalties if kl.anchor != "reference"]
        return frozenset(found)

    def is_idle(self, use: Use) -> bool:
        """Whether there is a trust region that cuts nothing, because every ratio that it looks at is 1."""
        ratio, looks_at_weight = self.algorithm.ratio, self.algorithm.surrogate.reads == "bounds"
        stays = use.stays_at(ratio.gate.anchor) and (not looks_at_weight or use.stays_at(ratio.weight.anchor))
        return self.divergence.kind != "none" and stays

    def key(self, use: Use | None = None) -> dict[str, Any]:
        """What tells methods apart, by section, for JSON: two with equal keys are one method.

        Left out are the name and the declared law on-policy. A constant window stands for its divergence
        (arXiv 2602.05494, Theorem 4.2), and every trust region that is idle in this use is the same one, as
        are ratios to anchors that are one policy in it.
        """
        if (spelled_out := self._spelled_out()) is not self:
            return spelled_out.key(use)
        region: object = self.divergence.model_dump(mode="json")
        if use is not None and self.is_idle(use):
            region = "idle"
        elif window := self.divergence.fixed_window():
            widths = self.divergence.widths() if self.algorithm.surrogate.reads_widths else None
            region = [*window.digits, *(f"{width:.10g}" for width in widths or ())]
        algorithm = self.algorithm.model_dump(mode="json", exclude={"name", "on_policy"})
        regularizer = self.regularizer.without_aliases().model_dump(mode="json")
        if use is not None:
            correction = algorithm["correction"]
            steps = correction["of"] if correction["kind"] == "product" else [correction]
            kl = regularizer["kl"]
            penalties = kl if isinstance(kl, list) else [kl or {}]
            for part in (*algorithm["ratio"].values(), *steps, *penalties):
                part |= {name: use.names(part[name]) for name in ("policy", "anchor") if name in part}
        return {"algorithm": algorithm, "divergence": region, "regularizer": regularizer}

    def _spelled_out(self) -> Method:
        """The same method without the surrogate that is short for `by_sign` over a window."""
        short = self.algorithm.surrogate
        if not isinstance(short, SignedWeightClip) or not short.lower <= 1.0 <= short.upper:
            return self
        surrogate = BySign(of="reward", positive=Reinforce(), negative=WeightClip())
        window = ExplicitWindow(lower=short.lower, upper=short.upper)
        return replace(self.with_parts(surrogate=surrogate), divergence=window)

    def same_as(self, other: Method, use: Use | None = None) -> bool:
        """Whether two methods, used alike, give equal runs seed by seed."""
        return self.key(use) == other.key(use)

    def as_record(self, use: Use) -> dict[str, Any]:
        """What a run records of its method, so that readers need no plugin: JSON, see `MethodRecord`."""
        window = self.divergence.fixed_window()
        bounds = None if window is None else [window.lower, window.upper if isfinite(window.upper) else None]
        return {"window": bounds, "description": self.words(), "key": self.key(use)}

    def words(self) -> dict[str, str]:
        """The choice on every axis in a few words; empty where it is the one that changes nothing."""
        return describe(self.algorithm, self.divergence, self.regularizer)
