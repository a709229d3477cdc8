"""The engine protocol: the interface for sampling completions in training and evaluation.

Every engine passes the contract in `tests/engines/test_engine_contract.py`. An engine samples from
softmax(logits / temperature), after penalties and truncation to `min_p`, `top_k` and `top_p` if they are set,
and reports the log-probabilities of exactly that distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from atrium.base.records import Completion, TokenIds
from atrium.engines.declaration import Sampling


class SamplingParams(Sampling):
    """Sampling parameters of completions.

    `temperature` 0 is greedy decoding (log-probabilities are then those at temperature 1). `top_p` 1, `top_k`
    None and `min_p` 0 leave the distribution unchanged, as on-policy training requires.

    Penalties change a token's logit z if the token has occurred. First, for tokens of prompt and completion,
    `repetition_penalty` r replaces z by z / r if z > 0 and by z r otherwise (arXiv 1909.05858, as in vLLM).
    Then z decreases by `presence_penalty` + n `frequency_penalty`, where n > 0 is the token's count in the
    completion. Training rollouts use no penalties, since penalized samples would not follow the policy's
    distribution.

    `ignore_stop`, which only speed measurements use, samples exactly `max_new_tokens` tokens: the stop tokens
    get probability 0, and log-probabilities are those of the distribution without them. `stop` lists strings
    that also end a completion; the completion keeps the string.
    """

    ignore_stop: bool = False
    stop: tuple[str, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty changes the distribution."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """A prompt and the seeds of its samples: one completion per seed.

    The completion of a seed depends only on the prompt, the weights, the sampling parameters and that seed.
    It does not depend on other requests, on their order, or on how the engine forms batches, except that the
    shape of a batch may change the last bits of logits. `wave` is the number of the request's wave in an
    evaluation (see `WaveSize`). An engine that forms batches never mixes waves in a batch, so the results of
    a wave do not depend on other waves.
    """

    prompt_token_ids: TokenIds
    sample_seeds: tuple[int, ...]
    wave: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """The finished completions of the request at `request_index`, in the order of the request's seeds."""

    request_index: int
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The properties of a started engine that a run records.

    `described` contains derived values, such as the size of the engine's cache. `num_preempted` is the number
    of times since the start that a sample was preempted from the cache and recomputed, or None if the engine
    does not preempt samples. `idle_s` is the time in seconds that servers were idle since the start, averaged
    over servers, or None for an engine in the trainer's process, whose idle time is not measured.
    """

    described: Mapping[str, str | int | float] = field(default_factory=dict)
    num_preempted: int | None = None
    idle_s: float | None = None


class Sampler(Protocol):
    """The interface for sampling completions, with the policy's current or earlier weights."""

    @property
    def facts(self) -> EngineFacts:
        """The properties that are known only once the engine is running."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions together once all are finished. Requests finish in any order.

        An engine may also answer requests that are appended to `requests` during iteration. Raises
        `EngineError` when a prompt leaves no space for `max_new_tokens` in the model's context.
        """


@runtime_checkable
class ReportsQueue(Protocol):
    """The interface of engines that report the number of their unfinished samples."""

    @property
    def num_pending(self) -> int:
        """The number of samples that are waiting or being sampled. Any thread may read it."""


class Engine(Sampler, Protocol):
    """The interface of engines: samplers that load the policy's weights after each update."""

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load the policy's weights as `version`, from a full `state_dict` that includes tied heads."""

    def release_memory(self) -> None:
        """Free the engine's device memory, if possible, until the engine is used again."""

    def close(self) -> None:
        """Release the engine's resources. Harmless when called twice."""
