"""The recorded settings on which the diagnosis of a run depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atrium.base.nested import mapping_at
from atrium.runs.layout import IMPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The recorded settings that decide which advice applies to a run."""

    has_trust_region: bool = True
    has_entropy_bonus: bool = False
    has_correction: bool = False
    counts_truncated: bool = False
    """Whether the answer in a truncated completion counts."""
    reward: str = "correctness"
    grader: str = "math"
    answer_place: str = "box"
    """Where the grader looks for an answer, or an empty text for a grader without such a setting."""
    thinks: bool = False
    """Whether answers must begin with reasoning that ends in </think>."""
    is_imported: bool = False
    """Whether another program trained the run, so that advice about Atrium's settings does not apply."""

    @classmethod
    def of(cls, config: Mapping[str, object]) -> RunFacts:
        """Return the facts in a resolved configuration. Missing values get their defaults."""
        grader, reward = mapping_at(config, "grader"), mapping_at(config, "reward")
        kind = str(reward.get("kind", "correctness"))
        return cls(
            has_trust_region=mapping_at(config, "divergence").get("kind") != "none",
            has_entropy_bonus=bool(mapping_at(config, "regularizer.entropy")),
            has_correction=mapping_at(config, "algorithm.correction").get("kind", "none") != "none",
            counts_truncated=kind != "correctness" or reward.get("require_stop") is False,
            reward=kind,
            grader=str(grader.get("kind", "math")),
            answer_place=str(grader.get("answer", "" if grader else "box")),
            thinks=mapping_at(config, "model").get("thinking") is True,
            is_imported=config.get("kind") == IMPORTED,
        )

    @property
    def pays_for_answers(self) -> bool:
        """Whether the reward is known to depend on an extracted answer."""
        return self.reward in ("correctness", "format")

    def missing_answers(self, extracted: str) -> str:
        """Describe why the grader may have found almost no answers, and name the settings to check.

        `extracted` is the share of completions with an extracted answer, formatted for the message.
        """
        none = f"the grader {self.grader} extracted an answer from {extracted} of the completions"
        if self.thinks:
            return (
                f"{none}; it reads the text after </think>, so check that the model writes this marker, or "
                "set model.thinking=false"
            )
        if not self.answer_place:
            return f"{none}; check that grader.kind={self.grader} fits the answers (`atrium samples`)"
        where = r"\boxed{}" if self.answer_place == "box" else self.answer_place
        return (
            f"{none}; it looks for {where}, so check that the prompt asks for this, or set grader.answer "
            "to match the model's output (`atrium samples`)"
        )
