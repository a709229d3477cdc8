"""The engine protocol: the interface for sampling completions in training and evaluation.

Every engine passes the contract in `tests/engines/test_engine_contract.py`. An engine samples from
softmax(logits / temperature), after penalties and truncation to `min_p`, `top_k` and `top_p` if they are set,
and reports the log-probabilities of exactly that distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from atrium.base.records import Completion, TokenIds
from atrium.engines.declaration import Sampling


class SamplingParams(Sampling):
    """Sampling parameters of completions.

    `temperature` 0 is greedy decoding (log-probabilities are then those at temperature 1). `top_p` 1, `top_k`
    None and `min_p` 0 leave the distribution unchanged, as on-policy training requires.

    The penalties change a token's logit z if the token has occurred. First, `repetition_penalty` r replaces z
    by z / r if z > 0 and by z r otherwise, for tokens of prompt and completion (arXiv 1909.05858, as in
    vLLM); then z decreases by `presence_penalty` + n `frequency_penalty`, where n > 0 is the token's count in
    the completion. Training rollouts use no penalties, since samples would not follow the policy's
    distribution.

    `ignore_stop` samples exactly `max_new_tokens` tokens: the stop token is given probability 0, and
    log-probabilities are those of the distribution without it. Only benchmarks use it. A completion also ends
    with the token that completes one of the strings `stop`, which it keeps.
    """

    ignore_stop: bool = False
    stop: tuple[str, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that have occurred become more or less likely."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """A prompt and the seeds of its samples: one completion per seed.

    The completion of a seed depends only on the prompt, the weights, the sampling parameters and that seed,
    not on other requests, their order, or the engine's batching (up to floating-point rounding of the logits,
    since a batch's shape may change the last bits). If an engine divides its work into units, consecutive
    requests share a unit only if their `wave` is equal: a request's unit is then the same regardless of the
    other requests.
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
    """The properties of a started engine that a run records.

    `described` holds derived values, such as the size of its cache. `num_preempted` counts samples that were
    preempted from the cache and recomputed since the start, None if this cannot happen. `idle_s` is the idle
    time since the start, averaged over its processes; None for an engine in the trainer's process, which is
    busy or keeps nobody waiting.
    """

    described: Mapping[str, str | int | float] = field(default_factory=dict)
    num_preempted: int | None = None
    idle_s: float | None = None


class Sampler(Protocol):
    """Samples completions from weights of the policy."""

    @property
    def facts(self) -> EngineFacts:
        """Return the properties that only the running engine knows."""
        ...

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions once, as soon as all of them are finished, in any order.

        An engine may also answer requests that are appended to `requests` during iteration. Raises
        `EngineError` when a prompt leaves no space for `max_new_tokens` in the model's context.
        """
        ...


class Engine(Sampler, Protocol):
    """Samples completions from the policy's current weights."""

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights by the policy's (a full `state_dict`, including tied heads), as `version`."""
        ...

    def release_memory(self) -> None:
        """Free the device's memory, if possible, until the engine is used again."""
        ...

    def close(self) -> None:
        """Release the engine's resources. Harmless when called twice."""
        ...
