"""Settings of the policy: the group `model`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atrium.section import Count, CountOrZero, Frac, Positive, Section, Seed, Text


class WarmupConfig(Section):
    """The supervised warm-up of the built-in model; both numbers of steps 0 leave it untrained."""

    num_clean_steps: CountOrZero
    """Steps on correct worked solutions, which build competence."""
    num_imperfect_steps: CountOrZero
    """Steps on an imperfect demonstrator's answers, which reinforcement then has to overcome."""
    batch_size: Count
    """Problems per step."""
    learning_rate: Positive
    """Peak learning rate."""
    direct_frac: Frac
    """Share of the demonstrator's answers that are given without steps."""
    direct_error_frac: Frac
    """Probability that such a direct answer is wrong."""
    slip_frac: Frac
    """Probability that a step of a worked solution slips, and carries the slip on."""


class LoraConfig(Section):
    """Adapters that are trained in place of the model's own weights; the engine samples from both merged."""

    rank: Count
    """Rows of A and columns of B, of every adapted map."""
    alpha: Positive
    """Scale: the adapters' product counts alpha / rank times."""
    target_modules: tuple[Text, ...] | Literal["all_linear"] = "all_linear"
    """The maps that get adapters, by the last part of their names; all_linear for all but the LM head."""


class TinyModelConfig(Section):
    """The built-in model: a small Qwen3-architecture policy with a character-level tokenizer."""

    kind: Literal["tiny"]
    """Which kind of model this is."""
    hidden_size: Count
    """Width of the residual stream."""
    num_layers: Count
    """Transformer layers."""
    num_heads: Count
    """Query heads per layer; a multiple of num_key_value_heads."""
    num_key_value_heads: Count
    """Key and value heads per layer."""
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Width of one head; even, because rotary positions turn pairs."""
    feed_forward_size: Count
    """Width of the gated feed-forward layer."""
    initializer_range: Positive
    """Standard deviation of the initial weights."""
    context_length: Annotated[int, Field(ge=16)]
    """The most tokens that a prompt and its completion may have together."""
    seed: Seed
    """The start of weights and warm-up; not the run's, so that all its seeds begin with one checkpoint."""
    warmup: WarmupConfig
    """How it is warmed up before reinforcement learning."""
    lora: LoraConfig | None = None
    """Adapters to train; null trains all of the model's weights."""
    prompt: Text
    """The prompt template: how a question is put to the model."""
    thinking: bool
    """Whether answers begin with a thought that ends in </think>, which is not graded."""


class HubModelConfig(Section):
    """A causal language model from the Hub or a local folder, or one built to its architecture."""

    kind: Literal["hub"]
    """Which kind of model this is."""
    source: Text
    """A Hub id such as Qwen/Qwen3-0.6B, or the path of a local folder."""
    revision: Text | None
    """Branch, tag or commit of the Hub repository; null for its default branch."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """Whether the weights are those of the source, or random ones in `architecture`, without a download."""
    architecture: dict[str, JsonValue] | None = None
    """What random weights are built from: model_type and the keys of its config.json."""
    seed: Seed = 0
    """The start of random weights, and of adapters."""
    lora: LoraConfig | None = None
    """Adapters to train; null trains all of the model's weights."""
    prompt: Text
    """The prompt template: how a question is put to the model."""
    thinking: bool
    """Whether answers begin with a thought that ends in </think>, which is not graded."""


ModelConfig = Annotated[TinyModelConfig | HubModelConfig, Field(discriminator="kind")]
