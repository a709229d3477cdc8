"""The inputs that methods need from a trainer, and those that each trainer provides."""

from __future__ import annotations

from dataclasses import dataclass

from atrium.base.errors import ConfigError
from atrium.method.checks import compares_numerics
from atrium.method.method import Method
from atrium.method.needs import Use

UNKNOWN_USE = Use(num_updates_per_batch=2, group_size=2, behavior_logprobs="recompute")
"""A use in which every part of a method has an effect, for trainers whose use of a method is unknown."""
WANTS: dict[str, str] = {
    "tokens": "the number of tokens of an update",
    "rows": "the number of completions of an update",
    "groups": "whole groups of completions in an update",
    "rewards": "rewards in addition to advantages",
    "named_rewards": "several rewards with their names",
    "rollout": "the log-probabilities of the engine that sampled",
    "both": "the log-probabilities of engine and trainer, to compare them",
    "reference": "the log-probabilities of a frozen reference policy",
    "moving_reference": "a reference policy that moves",
    "reward_kl": "log-probabilities of old and reference policy before advantages are computed",
    "entropy": "entropies of the policy",
    "second_pass": "a pass over all completions of an update before its loss",
    "distribution": "the distributions over the vocabulary",
    "kept": "denominators that leave out what a correction rejects",
    "state": "a coefficient that is carried from step to step",
}
"""Possible inputs of a method besides log-probabilities of policy and old policy, advantages and a mask."""


def wants(method: Method) -> tuple[str, ...]:
    """Return the keys of `WANTS` that a method needs, in the order of `WANTS`."""
    needs, regularizer, reference = method.needs, method.regularizer, method.algorithm.reference
    is_wanted = {
        "groups": needs.whole_groups,
        "rewards": needs.rewards,
        "named_rewards": method.algorithm.advantage.per_reward,
        "rollout": needs.rollout_logprobs,
        "both": compares_numerics(method.algorithm, UNKNOWN_USE) is not None,
        "reference": needs.reference_pass,
        "moving_reference": reference.moves,
        "reward_kl": any(kl.placement == "reward" for kl in regularizer.penalties),
        "entropy": needs.entropy != "none",
        "second_pass": needs.prepare_pass,
        "distribution": needs.distribution != "none",
        "kept": method.algorithm.reduction.counts == "kept",
        "state": regularizer.entropy is not None and regularizer.entropy.target is not None,
        method.algorithm.reduction.divides_by: True,
    }
    return tuple(key for key in WANTS if is_wanted.get(key))


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer that accepts an external loss.

    `gives` are the keys of `WANTS` that the trainer provides. `is_tested` is True if a test runs Atrium's
    loss with the trainer's code.
    """

    name: str
    gives: frozenset[str]
    is_tested: bool = False

    def lacks(self, method: Method) -> tuple[str, ...]:
        """Return the keys of `WANTS` that the method needs and the trainer does not provide."""
        return tuple(key for key in wants(method) if key not in self.gives)

    def check(self, method: Method) -> None:
        """Raise `ConfigError` if the trainer cannot run the method; the message lists the missing inputs."""
        if lacking := self.lacks(method):
            what = " and ".join(WANTS[key] for key in lacking)
            raise ConfigError(
                f"{method.algorithm.name} cannot run in {self.name}, since it requires {what}; "
                "docs/methods.md lists the trainers of each method"
            )


OWN_LOOP = Trainer(
    name="a custom training loop", gives=frozenset(WANTS) - {"distribution", "state"}, is_tested=True
)
TRL = Trainer(name="TRL", gives=OWN_LOOP.gives - {"moving_reference", "reward_kl", "kept"}, is_tested=True)
VERL = Trainer(
    name="verl", gives=frozenset({"tokens", "rows", "rollout", "both", "reference"}), is_tested=True
)
PRIME_RL = Trainer(name="prime-rl", gives=frozenset({"tokens", "rollout", "reference"}))
NEMO_RL = Trainer(name="NeMo-RL", gives=frozenset({"tokens", "rows", "rollout", "both", "reference"}))
TINKER = Trainer(
    name="Tinker", gives=frozenset({"tokens", "rows", "groups", "rewards", "rollout", "second_pass"})
)
TRAINERS = (OWN_LOOP, TRL, VERL, PRIME_RL, NEMO_RL, TINKER)
"""Every trainer in `docs/trainers.md`."""
