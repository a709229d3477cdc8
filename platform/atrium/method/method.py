"""A method: a choice on every axis, its needs, compatibility checks, and equality with other methods."""

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
from atrium.method.token_weights import TokenWeight
from atrium.method.words import describe

SECTIONS = ("algorithm", "divergence", "regularizer")
"""Sections of a run that form its method."""
BFLOAT16_NOISE = 0.02
"""Mean difference in nats of a token's log-probability between passes in float32 and in bfloat16, on text
with SmolLM2-135M-Instruct; engines and trainers in bfloat16 differ by 0.01 to 0.02."""


@dataclass(frozen=True)
class Method:
    """A method: the sections `algorithm`, `divergence` and `regularizer` of a run's configuration."""

    algorithm: Algorithm
    divergence: Divergence
    regularizer: Regularizer = Regularizer()

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Method | None:
        """Return the method in the settings of a recorded run, or None if this version cannot read them.

        `settings` are the contents of the run's `config.json`. The result is None for a method that only
        another version of Atrium can read, or that needs a plugin that is not loaded. Such a method can be
        identified only by the text of its settings.
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
        """Return a copy with the given fields of `algorithm` replaced, such as `surrogate`."""
        return replace(self, algorithm=self.algorithm.model_copy(update=parts))

    @property
    def needs(self) -> Needs:
        """The union of the needs of all parts."""
        chosen = self.algorithm
        parts = [part.needs for part in self.regularizer.parts]
        parts += [self.divergence.needs, chosen.surrogate.needs, chosen.reduction.needs]
        parts += [chosen.token_weight.needs, chosen.correction.needs]
        parts += [chosen.ratio.gate.needs, chosen.ratio.weight.needs]
        compared = {policy for step in chosen.correction.steps for policy in step.compares or ()}
        parts.append(Needs(prepare_pass=chosen.prepares_correction and "current" in compared))
        return reduce(Needs.__or__, parts, NOTHING)

    def check(self, use: Use) -> None:
        """Raise `ConfigError` if parts are incompatible, or if a part has no effect in this use."""
        check_parts(self.algorithm, self.divergence, self.regularizer, use)
        check_anchors(self.algorithm, use)

    def notes(self, use: Use) -> list[str]:
        """Return notes for the user about valid settings that may not have the expected effect."""
        notes = []
        if not use.is_stale and {"proximal", "behavior"} <= self.anchors:
            notes = [
                "rollout.lag=0: the policy at the start of the step sampled the batch, so the anchors "
                "proximal and behavior are the same"
            ]
        if not self.is_idle(use):
            return notes + self._rounding_notes(use)
        gate = use.names(self.algorithm.ratio.gate.anchor)
        return [
            *notes,
            f"one update per batch: the policy is still the {gate} policy, every ratio to it is 1, and "
            f"divergence={self.divergence.kind} clips nothing",
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
            f"compute.dtype=bfloat16 changes log-ratios of engine and trainer by about {noise:.2g} nats "
            f"{level}, more than the window [{window.lower:.6g}, {window.upper:.6g}] allows, so rounding "
            f"alone causes clipping; {remedy}"
        ]

    def _rounding_noise(self, use: Use) -> tuple[float, str]:
        """Return the estimated bfloat16 error of the gate's log-ratio, and a phrase for the gate's level.

        The error is in nats. The phrase is part of a message, such as `per token`. The error is 0 and the
        phrase is empty if the run does not use bfloat16, if there is no gate, or if the trainer computes the
        log-probabilities of both policies in the gate's ratio.
        """
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
        """The anchors of ratios, corrections, the token weight and KL penalties, except `reference`.

        Of a correction, both compared policies count, except the current one. A token weight that does not
        override `weigh`, such as `top_entropy`, has no anchor. The behavior policy in the importance weights
        of KL penalties does not count as an anchor.
        """
        chosen = self.algorithm
        found: list[Anchor] = [
            ratio.anchor for ratio in (chosen.ratio.gate, chosen.ratio.weight) if ratio.level != "none"
        ]
        for step in chosen.correction.steps:
            found += [policy for policy in step.compares or () if policy != "current"]
        if type(chosen.token_weight).weigh is not TokenWeight.weigh:  # the default ignores log-ratios
            found.append(chosen.token_weight.anchor)
        found += [kl.anchor for kl in self.regularizer.penalties if kl.anchor != "reference"]
        return frozenset(found)

    def is_idle(self, use: Use) -> bool:
        """Return whether a trust region exists but clips nothing, because every ratio that it reads is 1."""
        ratio, looks_at_weight = self.algorithm.ratio, self.algorithm.surrogate.reads == "bounds"
        stays = use.stays_at(ratio.gate.anchor) and (not looks_at_weight or use.stays_at(ratio.weight.anchor))
        return self.divergence.kind != "none" and stays

    def key(self, use: Use | None = None) -> dict[str, Any]:
        """Return a key that identifies the method: JSON-compatible values by section.

        Two methods are the same if their keys are equal. The key leaves out `algorithm.name` and
        `algorithm.on_policy`, the declared on-policy gradient. A divergence with a constant window is
        represented by that window (arXiv 2602.05494, Theorem 4.2). If `use` is given, the key does not
        distinguish between trust regions without effect in this use, nor between anchors that are the same
        policy in this use.
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
        """Return the method with `signed_weight_clip` replaced by an equivalent `by_sign` and a window.

        Returns the method unchanged if it has another surrogate, or if the surrogate's bounds exclude 1.
        """
        short = self.algorithm.surrogate
        if not isinstance(short, SignedWeightClip) or not short.lower <= 1.0 <= short.upper:
            return self
        surrogate = BySign(of="reward", positive=Reinforce(), negative=WeightClip())
        window = ExplicitWindow(lower=short.lower, upper=short.upper)
        return replace(self.with_parts(surrogate=surrogate), divergence=window)

    def same_as(self, other: Method, use: Use | None = None) -> bool:
        """Return whether two methods produce the same run for every seed.

        If `use` is given, the methods are compared in this use only.
        """
        return self.key(use) == other.key(use)

    def as_record(self, use: Use) -> dict[str, Any]:
        """Return the method as JSON for the run's `method.json`, which can be read without plugins."""
        window = self.divergence.fixed_window()
        bounds = None if window is None else [window.lower, window.upper if isfinite(window.upper) else None]
        return {"window": bounds, "description": self.words(), "key": self.key(use)}

    def words(self) -> dict[str, str]:
        """Return a short description of each axis's choice, by axis name.

        The description of a neutral choice is empty.
        """
        return describe(self.algorithm, self.divergence, self.regularizer)
