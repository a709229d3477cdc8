"""Over how many ranks vLLM can split a model: what its tensor parallelism has to divide.

Pure arithmetic on the shape of a model, so that what cannot be split is refused before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from atrium.errors import ConfigError

VOCABULARY_UNIT = 64
"""vLLM rounds a vocabulary up to a multiple of this, and splits what results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitShape:
    """What is split: whole heads, the columns of the feed-forward layer, the rows of the vocabulary."""

    num_heads: int
    num_key_value_heads: int
    feed_forward_size: int
    vocabulary_size: int

    def obstacle(self, num_ranks: int) -> str | None:
        """What so many ranks cannot share; None where they can share all. Key-value heads may be copied."""
        keys = self.num_key_value_heads
        rows = -(-self.vocabulary_size // VOCABULARY_UNIT) * VOCABULARY_UNIT
        if self.num_heads % num_ranks:
            return f"{self.num_heads} attention heads"
        if keys % num_ranks and num_ranks % keys:
            return f"{keys} key-value heads"
        if self.feed_forward_size % num_ranks:
            return f"feed-forward width of {self.feed_forward_size}"
        return f"vocabulary of {rows} rows, padding included" if rows % num_ranks else None


def check_split(shape: SplitShape, tensor_parallel: int) -> None:
    """Raise `ConfigError` where vLLM cannot split such a model over `tensor_parallel` ranks."""
    obstacle = shape.obstacle(tensor_parallel)
    if obstacle is None:
        return
    possible = [str(n) for n in range(1, shape.num_heads + 1) if shape.obstacle(n) is None]
    raise ConfigError(
        f"rollout.tensor_parallel={tensor_parallel} cannot split the model's {obstacle}; "
        f"allowed is {', '.join(possible)}"
    )
