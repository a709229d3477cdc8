"""The shape of a transformer, which determines its memory and how it can be split over processes.

`read_shape` reads the shape of a dense decoder with gated feed-forward layers from the keys of its
config.json, without importing torch. `models/architecture.py` determines the shape of any model that
transformers knows, but importing transformers takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

from atrium.base.errors import ConfigError
from atrium.models.context import Context

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Sizes in a config.json that every model's shape needs."""
OTHER_SIZES = ("head_dim", "num_key_value_heads", "max_position_embeddings")
"""Sizes in a config.json that have a default."""
VOCABULARY_UNIT = 64
"""vLLM rounds a vocabulary up to a multiple of this before splitting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a causal language model.

    `num_parameters` and `num_tensors`, the number of parameter tensors, include the LM head and count tied
    parameters once. `context_length` is in tokens, or 0 if unknown. `linear_maps` lists every linear layer of
    the decoder, without the LM head, by the last part of its name, its number of inputs, and its number of
    outputs.
    """

    model_type: str
    num_parameters: int
    num_tensors: int
    num_layers: int
    hidden_size: int
    feed_forward_size: int
    vocabulary_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    context_length: int
    linear_maps: tuple[tuple[str, int, int], ...]

    @property
    def query_size(self) -> int:
        """The total width of all query heads."""
        return self.num_heads * self.head_size

    @property
    def key_size(self) -> int:
        """The total width of all key heads, which equals that of all value heads."""
        return self.num_key_value_heads * self.head_size

    @property
    def num_block_parameters(self) -> int:
        """The number of parameters of one decoder block, without norms and biases.

        The block is taken to have one gated feed-forward layer, as in a dense model.
        """
        attention = 2 * self.query_size + 2 * self.key_size
        return self.hidden_size * (attention + 3 * self.feed_forward_size)

    def cache_numbers_per_token(self, num_shared: int = 1) -> int:
        """Return how many numbers the key-value cache stores per token, over all layers.

        If `num_shared` ranks split the cache, this is the number on one rank.
        """
        num_heads = -(-self.num_key_value_heads // num_shared)
        return 2 * self.num_layers * num_heads * self.head_size

    def splitting_obstacle(self, num_ranks: int) -> str | None:
        """Return a description of a part of the model that `num_ranks` vLLM ranks cannot split.

        An example is `14 attention heads`. Returns None if the ranks can split every part. Only whole heads,
        columns of the feed-forward layer and rows of the vocabulary are split. Key-value heads may be copied.
        """
        keys = self.num_key_value_heads
        rows = -(-self.vocabulary_size // VOCABULARY_UNIT) * VOCABULARY_UNIT
        if self.num_heads % num_ranks:
            return f"{self.num_heads} attention heads"
        if keys % num_ranks and num_ranks % keys:
            return f"{keys} key-value heads"
        if self.feed_forward_size % num_ranks:
            return f"feed-forward width of {self.feed_forward_size}"
        return f"vocabulary of {rows} rows, including padding" if rows % num_ranks else None


def read_shape(keys: Mapping[str, object] | None) -> ModelShape | None:
    """Return the shape from the keys of a config.json, or None if a size in `SIZES` is missing or invalid.

    More heads than `hidden_size` are invalid too, unless `head_dim` is given. Norms and biases, less than a
    thousandth of the parameters, are left out.
    """
    found = keys or {}
    sizes = [value for name in SIZES if isinstance(value := found.get(name), int) and value > 0]
    if len(sizes) < len(SIZES):
        return None
    vocabulary, hidden, feed_forward, layers, heads = sizes

    def size(key: str, otherwise: int) -> int:
        value = found.get(key)
        return value if isinstance(value, int) and value > 0 else otherwise

    head_size = size("head_dim", hidden // heads)
    if not head_size:
        return None
    query, keys_width = heads * head_size, size("num_key_value_heads", heads) * head_size
    maps = (
        ("q_proj", hidden, query),
        ("k_proj", hidden, keys_width),
        ("v_proj", hidden, keys_width),
        ("o_proj", query, hidden),
        ("gate_proj", hidden, feed_forward),
        ("up_proj", hidden, feed_forward),
        ("down_proj", feed_forward, hidden),
    )
    num_embeddings = 1 if found.get("tie_word_embeddings") else 2
    in_layers = layers * sum(inputs * outputs for _, inputs, outputs in maps)
    return ModelShape(
        model_type=str(found.get("model_type")),
        num_parameters=in_layers + num_embeddings * vocabulary * hidden,
        num_tensors=layers * len(maps) + num_embeddings,
        num_layers=layers,
        hidden_size=hidden,
        feed_forward_size=feed_forward,
        vocabulary_size=vocabulary,
        num_heads=heads,
        num_key_value_heads=keys_width // head_size,
        head_size=head_size,
        context_length=Context.of(found).length,
        linear_maps=layers * maps,
    )


def chosen_maps(names: Set[str], wanted: tuple[str, ...] | Literal["all_linear"]) -> set[str]:
    """Return the linear layers that get adapters: all of `names`, or those in `wanted`.

    `names` are the last parts of the layers' names. Raises `ConfigError` if `wanted` contains a name that is
    not in `names`.
    """
    if wanted == "all_linear":
        return set(names)
    unknown = sorted(set(wanted) - names)
    if unknown:
        raise ConfigError(
            f"model.lora.target_modules contains {', '.join(unknown)}, but the model has no such layers; "
            f"use all_linear, or a list of {', '.join(sorted(names))}"
        )
    return set(wanted)
