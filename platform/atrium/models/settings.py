r"""Settings of the policy (the group `model`) and of the built-in model's parts.

Loading, adapters and the warm-up use these classes directly. This module does not import torch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from atrium.base.nested import flattened
from atrium.base.section import SMALLEST, Count, CountOrZero, Day, Frac, Positive, Rate, Section, Seed, Text
from atrium.data.prompts import Prompt
from atrium.models.shape import OTHER_SIZES, SIZES

TOKENS = (
    *("<pad>", "<unk>", "<eos>", "<q>", "<a>"),
    *("\\boxed{", "}", *"0123456789", *"+-=;", *"*/(). \n"),
)
"""The built-in model's vocabulary; a token's index is its id. The chain task does not use the last seven
tokens."""


class WarmupSettings(Section):
    """The supervised warm-up of the built-in model. With 0 steps in both phases, there is no warm-up."""

    num_clean_steps: CountOrZero = 600
    """Number of steps on correct worked solutions, which build competence."""
    num_imperfect_steps: CountOrZero = 200
    """Number of steps on an imperfect demonstrator's answers, which reinforcement learning must then
    overcome."""
    batch_size: Count = 32
    """Problems in each warm-up step."""
    learning_rate: Rate = 0.008
    """Peak learning rate of the warm-up."""
    direct_frac: Frac = 0.65
    """Share of the demonstrator's answers that are given without steps."""
    direct_error_frac: Frac = 0.3
    """Probability that an answer without steps is wrong."""
    slip_frac: Frac = 0.12
    """Probability that a step of a worked solution is wrong; the error carries over."""

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps of the clean and the imperfect phase together."""
        return self.num_clean_steps + self.num_imperfect_steps


class LoraSettings(Section):
    """Adapters that are trained instead of the model's weights; the engine samples from the sum of both."""

    rank: Count
    """Rank of the adapters: the number of rows of A and of columns of B for every adapted map."""
    alpha: Positive
    """Scale of the adapters: their product is multiplied by alpha / rank."""
    target_modules: Annotated[tuple[Text, ...], Field(min_length=1)] | Literal["all_linear"] = "all_linear"
    """Linear maps that get adapters, by the last part of their names; all_linear for all except the LM
    head."""


class TinySettings(Section):
    """The shape of the built-in model: a small Qwen3-architecture policy."""

    hidden_size: Count = 64
    """Width of the residual stream."""
    num_layers: Count = 2
    """Number of transformer layers."""
    num_heads: Count = 4
    """Number of query heads per layer; a multiple of num_key_value_heads."""
    num_key_value_heads: Count = 2
    """Number of key and value heads per layer."""
    head_dim: Annotated[int, Field(ge=2, le=65_536, multiple_of=2)] = 16
    """Width of one head; must be even for rotary positions."""
    feed_forward_size: Count = 192
    """Width of the gated feed-forward layer."""
    initializer_range: Positive = 0.1
    """Standard deviation of the initial weights. A value of about 1 / sqrt(hidden_size), far above
    transformers' 0.02, makes the warm-up several times faster."""
    context_length: Annotated[int, Field(ge=16, le=10**9)] = 128
    """Maximum number of tokens of a prompt and its completion together."""

    @property
    def architecture(self) -> dict[str, JsonValue]:
        """The model's architecture: model_type and the keys of its config.json."""
        return {
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.feed_forward_size,
            "initializer_range": self.initializer_range,
            "max_position_embeddings": self.context_length,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "vocab_size": len(TOKENS),
        }


class TinyModelSettings(TinySettings):
    """The built-in model: a small Qwen3-architecture policy with a character-level tokenizer."""

    direct_token_id: ClassVar[int | None] = TOKENS.index("\\boxed{")
    """The first token of an answer without reasoning, which the warm-up makes frequent."""

    kind: Literal["tiny"]
    """Kind of model."""
    seed: Seed | None
    """Random seed of weights and warm-up: with a number, runs with different seeds start from the same
    checkpoint; null for the run's own seed, so that each run starts from another checkpoint."""
    warmup: WarmupSettings
    """Warm-up before reinforcement learning."""
    lora: LoraSettings | None = None
    """Adapters to train; null trains all of the model's weights."""
    prompt: Prompt
    """Format of a question for the model: a template's name, or its own system, examples, user, stop, ..."""
    thinking: bool
    """Whether answers begin with reasoning that ends in </think>, which is not graded."""
    date: Day | None = None
    """Current date in chat templates (UTC, YYYY-MM-DD); null for the day of the run's start."""


class HubModelSettings(Section):
    """A causal language model from the Hub or a local folder, or its architecture with random weights."""

    direct_token_id: ClassVar[int | None] = None
    """None, because the first token of an answer without reasoning is not known for these models."""

    kind: Literal["hub"]
    """Kind of model."""
    source: Text
    """A Hub id such as Qwen/Qwen3-0.6B, or the path of a local folder."""
    revision: Text | None = None
    """Branch, tag or commit of the Hub repository; null for its default branch."""
    released: Day | None = None
    """Date of the model's publication, YYYY-MM-DD; evaluations show it next to the date of a contest."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """Whether to load the weights of `source`, or to create random weights in `architecture` without a
    download, to measure speed and memory. Random weights use the built-in model's character tokenizer."""
    architecture: dict[str, JsonValue] | None = None
    """Architecture for random weights: model_type and the keys of its config.json."""
    seed: Seed | None = 0
    """Random seed of random weights and of adapters; null for the run's own seed."""
    lora: LoraSettings | None = None
    """Adapters to train; null trains all of the model's weights."""
    prompt: Prompt
    """Format of a question for the model: a template's name, or its own system, examples, user, stop, ..."""
    thinking: bool
    """Whether answers begin with reasoning that ends in </think>, which is not graded."""
    date: Day | None = None
    """Current date in chat templates (UTC, YYYY-MM-DD); null for the day of the run's start."""

    @field_validator("architecture")
    @classmethod
    def _check_architecture(cls, value: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        for key, one in flattened(value or {}).items():
            is_size = key in (*SIZES, *OTHER_SIZES) and one is not None
            if is_size and not (type(one) is int and 1 <= one <= 10**9):
                raise ValueError(f"{key} must be a whole number from 1 to 10^9, got {one}")
            if isinstance(one, float) and one and not SMALLEST <= abs(one) <= 1e30:
                raise ValueError(
                    f"{key} must be 0, or between {SMALLEST:g} and 1e30 in absolute value, got {one:g}"
                )
        return value


ModelSettings = Annotated[TinyModelSettings | HubModelSettings, Field(discriminator="kind")]
