"""The engine protocol: whatever samples completions for the loop and for evaluation.

Every engine passes the contract in `tests/engines/test_engine_contract.py`. An engine samples from
softmax(logits / temperature), after penalties and cut to `min_p`, `top_k` and `top_p` where they are set, and
reports the log-probabilities of that very distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from atrium.base.records import Completion, TokenIds
from atrium.engines.declaration import Sampling


class SamplingParams(Sampling):
    """How completions are drawn.

    `temperature` 0 is greedy decoding (log-probabilities are then those at temperature 1).
    `top_p` 1, `top_k` None and `min_p` 0 leave the distribution whole, which on-policy training requires.
    The penalties change a token's logit z where the token occurred. First, `repetition_penalty` r makes z / r
    of z > 0 and z r of others, for tokens of prompt and completion (arXiv 1909.05858, as vLLM has it); then z
    falls by `presence_penalty` + n `frequency_penalty`, with n > 0 the times that the completion has the
    token. Rollouts of training have none: what is sampled would not be the policy's distribution.
    `ignore_stop` samples exactly `max_new_tokens` tokens: the stop token is given probability 0, and
    log-probabilities are those of the distribution without it. Only benchmarks use it.
    A completion is finished as well by the token that completes one of the strings `stop`, which it keeps.
    """

    ignore_stop: bool = False
    stop: tuple[str, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that occurred are more or less likely for it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """One prompt and the seeds of the samples wanted for it: one completion per seed.

    The completion of a seed depends on the prompt, the weights, the sampling parameters and that seed
    only: not on its neighbours, their order, or how the engine batches them (up to floating-point
    rounding of the logits, which a batch's shape may change in the last bits).
    Where an engine's work is cut into units, requests that follow one another share one only with an equal
    `wave`: the neighbours of a request are then the same whatever else is asked.
    """

    prompt_token_ids: TokenIds
    sample_seeds: tuple[int, ...]
    wave: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """The finished completions of the request at `request_index`, in the order of its seeds."""

    request_index: int
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a run records of a started engine.

    `described` is what it made of its settings, such as the size of its cache; `num_preempted` how often
    since its start a sample lost its place in the cache and was computed again, None where none can.
    `idle_s` is for how long since its start it had nothing to do, as the mean of its processes; None for an
    engine in the trainer's process, which is busy or keeps nobody waiting.
    """

    described: Mapping[str, str | int | float] = field(default_factory=dict)
    num_preempted: int | None = None
    idle_s: float | None = None


class Sampler(Protocol):
    """Samples completions from weights of the policy."""

    @property
    def facts(self) -> EngineFacts:
        """What only the started engine knows of itself, now."""
        ...

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions once, as soon as all of them are finished, in any order.

        An engine may also answer requests that are appended to `requests` while completions are taken.
        Raises `EngineError` when a prompt leaves no room for `max_new_tokens` in the model's context.
        """
        ...


class Engine(Sampler, Protocol):
    """Samples completions from the policy's current weights."""

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take over the policy's weights (a full `state_dict`, tied heads included) as `version`."""
        ...

    def release_memory(self) -> None:
        """Give the device's memory to others until the engine is used again, where it has any to give."""
        ...

    def close(self) -> None:
        """Release what the engine holds. Harmless when called twice."""
        ...
