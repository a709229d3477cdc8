"""Model FLOPs of an update. Their rate relative to a device's peak is the model FLOPs utilization (MFU).

As in PaLM (arXiv 2204.02311, appendix B), the count includes only necessary work: two operations per weight
and token in the forward pass and twice as many in the backward pass, attention of each token to the tokens
before it, and the LM head at completion tokens. Padding, repeated prompts, recomputation and passes without a
gradient are not counted, so that wasted time lowers the MFU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from atrium.base.records import Floats

_FORWARD_AND_BACKWARD = 3
"""Factor for both passes: the backward pass computes two products for each product of the forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """The sizes that determine a model's number of operations: its weights and the width of attention."""

    num_layer_weights: int
    num_head_weights: int
    num_layers: int
    attention_width: int

    @classmethod
    def of(cls, model: nn.Module) -> ModelFlops | None:
        """Return the sizes of a transformers language model, or None if its configuration lacks them.

        Returns None for mixtures of experts too, since a token uses only a part of their weights.
        """
        config = model.config.get_text_config()  # type: ignore[union-attr, operator]
        num_heads = getattr(config, "num_attention_heads", None)
        is_mixture = any("experts" in name for name, _ in model.named_modules())
        head = model.get_output_embeddings()  # type: ignore[operator]
        if num_heads is None or is_mixture or head is None:
            return None
        base: nn.Module = model.base_model  # type: ignore[assignment]
        tables = [module for module in base.modules() if isinstance(module, nn.Embedding)]
        embeddings = {parameter for table in tables for parameter in table.parameters()}
        in_layers = (
            parameter.numel()
            for parameter in base.parameters()
            if parameter.dim() == 2 and parameter not in embeddings
        )
        head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        return cls(
            num_layer_weights=sum(in_layers),
            num_head_weights=head.weight.numel(),
            num_layers=config.num_hidden_layers,
            attention_width=num_heads * head_size,
        )

    def of_update(
        self,
        num_prompt_tokens_B: NDArray[np.int64],
        num_tokens_B: NDArray[np.int64],
        prompt_index_B: NDArray[np.int64],
    ) -> float:
        """Return the number of operations of a forward and backward pass. A shared prompt counts once."""
        _, owner_U = np.unique(prompt_index_B, return_index=True)
        prompts, rows = num_prompt_tokens_B[owner_U].astype(float), (num_tokens_B - 1).astype(float)
        num_completion = float((num_tokens_B - num_prompt_tokens_B).sum())
        num_positions = float(prompts.sum() + (rows - num_prompt_tokens_B).sum())
        pairs = _pairs(prompts) + _pairs(rows) - _pairs(num_prompt_tokens_B.astype(float))
        products = self.num_layer_weights * num_positions + self.num_head_weights * num_completion
        # Scores, and the weighted sum of values: two products of `attention_width` per pair of tokens.
        products += 2.0 * self.num_layers * self.attention_width * pairs
        return 2.0 * _FORWARD_AND_BACKWARD * products


def _pairs(length: Floats) -> float:
    """Return the number of pairs of a token with itself or an earlier one, in sequences of these lengths."""
    return float((length * (length + 1.0)).sum() / 2.0)
