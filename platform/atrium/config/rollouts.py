"""The configuration of sampling: one frozen model per engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.section import Count, Positive, Section, Text, Wait


class SamplingSection(Section):
    """What every engine is asked for."""

    num_prompts: Count
    """Problems per step."""
    group_size: Count
    """Completions per problem."""
    max_new_tokens: Count
    """Length limit of a completion, its stop token included."""
    temperature: Positive
    """Of the distribution that is sampled from and trained."""

    lag: Annotated[int, Field(ge=0, le=64)] = 0
    """Steps that sampling is ahead: with k, the weights after step t-1-k sample the batch of step t."""
    overlap: bool | Literal["auto"] = "auto"
    """Whether the batch of `lag` is sampled during that update, by an engine with weights of its own; the
    result is the same. auto for vLLM on a GPU of one process that keeps its memory; it takes a copy of the
    trained parameters."""
    max_mismatch: Positive | Literal["auto"] | None = "auto"
    """Mean difference, in nats, of the engine's and the trainer's log-probabilities beyond which a run ends;
    auto for 0.001 where both compute in float32, 0.1 elsewhere, none for stored rollouts; null for none."""

    @property
    def ranks_per_engine(self) -> int:
        """Processes of a run that share one engine."""
        return 1


class TransformersRolloutConfig(SamplingSection):
    """Rollouts sampled by the transformers engine in the trainer's process."""

    engine: Literal["transformers"]
    """Which engine samples."""
    max_batch_tokens: Count | None
    """The most tokens, padding included, that are generated at once; null for no limit."""


class VllmRolloutConfig(SamplingSection):
    """Rollouts sampled by vLLM in the trainer's process."""

    engine: Literal["vllm"]
    """Which engine samples."""
    context_length: Count | None
    """The most tokens that a prompt and its completion have together; null for all that the model allows."""
    max_num_seqs: Count
    """The most completions that are decoded at once; others wait."""
    gpu_memory_fraction: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Share of the GPU's memory that vLLM's weights and cache take, unless kv_cache_mb is given."""
    kv_cache_mb: Count | None
    """Megabytes of the key-value cache; null for what gpu_memory_fraction leaves."""
    kv_cache_dtype: Literal["auto", "fp8"]
    """What keys and values are stored in; auto for compute.dtype."""
    enforce_eager: bool
    """Whether CUDA graphs and compilation are left out: starts sooner, decodes more slowly on a GPU."""
    sleep_level: Literal[1, 2] | None
    """What is done with vLLM's memory during updates: 1 keeps the weights on the host, 2 drops them."""
    num_speculative_tokens: Count | None
    """Tokens that are guessed from repetitions in the text and checked in one step; null for off."""
    start_timeout_s: Wait
    """How long vLLM may take to start, compilation included."""
    step_timeout_s: Wait
    """How long one decoding step or one weight update may take."""
    tensor_parallel: Count = 1
    """Consecutive processes of a node that share one vLLM, whose weights and cache are split over them."""

    @property
    def ranks_per_engine(self) -> int:
        """Processes of a run that share one engine."""
        return self.tensor_parallel


class BankRolloutConfig(SamplingSection):
    """Rollouts read from disk, all of each group or a part; the transformers engine samples the rest."""

    engine: Literal["bank"]
    """Which engine samples."""
    max_batch_tokens: Count | None
    """The most tokens, padding included, that are generated at once; null for no limit."""
    source: Text
    """A run whose rollouts were recorded, a folder of Parquet files, or one such file."""
    stored_frac: Annotated[float, Field(gt=0.0, le=1.0)]
    """The share of each group that is read; the rest is sampled from the policy."""
    rewards: Literal["regrade", "stored"]
    """Whether stored completions are graded again, or keep the reward they were stored with."""

    @property
    def num_stored(self) -> int:
        """Stored completions per group."""
        return round(self.stored_frac * self.group_size)


RolloutConfig = Annotated[
    TransformersRolloutConfig | VllmRolloutConfig | BankRolloutConfig,
    Field(discriminator="engine"),
]
