"""The results of products that decoding made, kept for the update by the same weights.

With one update per batch, the forward pass of the update uses the very weights that sampled the batch, and
decoding has multiplied each completion token with them already. The backward pass needs these results in any
case, so they are only kept a little longer. Both fused forms of `qwen3` know them; the rest is computed.

Axes: N tokens, M outputs of a product, R rows of a wave, T its steps, B rows of a pass, L tokens of a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from atrium.models.qwen3 import has_fused_form
from atrium.records import TokenIds

MAX_BYTES = 2**30
"""What is kept of a batch at most; the decoding steps behind it are computed again."""

MIN_HIDDEN_SIZE = 256
"""The products of narrower models are computed again in the time that copying them takes."""

_Each = TypeVar("_Each")


def pays_to_keep(model: PreTrainedModel) -> bool:
    """Whether updates are faster with what decoding kept of this model."""
    return has_fused_form(model) and bool(model.config.hidden_size >= MIN_HIDDEN_SIZE)


class BlockProducts(NamedTuple, Generic[_Each]):
    """Something of each product of a block.

    `attended`, behind attention, and `output`, behind the feed-forward, include what the product is added to.
    """

    query_key_value: _Each
    attended: _Each
    gate_up: _Each
    output: _Each


@dataclass(frozen=True, slots=True)
class KnownProduct:
    """The result [N, M] of a product, with anything in the rows of the tokens that are `missing`."""

    result_NM: Tensor
    missing: Tensor


class KeptWave:
    """The products of rows that are decoded together, step by step and block by block."""

    def __init__(
        self, owner: KeptProducts, prompts: Sequence[TokenIds], *, num_blocks: int, bytes_per_token: int
    ) -> None:
        self._owner = owner
        self._prompts = prompts
        self._bytes_per_token = bytes_per_token
        self._row_N = np.arange(len(prompts))
        self._rows: list[NDArray[np.int64]] = []
        self._blocks: list[list[BlockProducts[Tensor]]] = [[] for _ in range(num_blocks)]
        self.num_untaken = 0

    def begin_step(self) -> None:
        """A token of each row follows."""
        has_room = self._owner.reserve(len(self._row_N) * self._bytes_per_token)
        self._rows.append(self._row_N if has_room else self._row_N[:0])

    def add(self, block: int, products: BlockProducts[Tensor]) -> None:
        """Keep a block's products [N, M] of the step; rows, or columns, lie together in memory."""
        if len(self._rows[-1]):
            self._blocks[block].append(products)

    def select(self, index_N: Tensor) -> None:
        """Go on with the rows at these places."""
        self._row_N = self._row_N[index_N.numpy()]

    def finish(self, place: int, token_ids: TokenIds) -> None:
        """The row at a place has its whole completion, which can be taken from now on."""
        row = int(self._row_N[place])
        self._owner.enter(self._prompts[row], token_ids, self, row)
        self.num_untaken += 1

    @property
    def num_tokens(self) -> int:
        """The tokens that are kept, those that some rows have behind their end included."""
        return sum(map(len, self._rows))

    @cached_property
    def place_RT(self) -> NDArray[np.int64]:
        """Where the rows' tokens stand among all that are kept, step behind step; else -1."""
        place_RT = np.full((len(self._prompts), len(self._rows)), -1)
        start = 0
        for step, rows in enumerate(self._rows):
            place_RT[rows, step] = start + np.arange(len(rows))
            start += len(rows)
        return place_RT

    def block(self, index: int) -> list[BlockProducts[Tensor]]:
        """A block's products, step by step; they are given away when all completions are taken."""
        found = self._blocks[index]
        if not self.num_untaken:
            self._blocks[index] = []
        return found


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Packed tokens whose products are kept in waves.

    `source_N` is where each stands in the waves, one behind the other; any place for those `missing`.
    """

    waves: tuple[KeptWave, ...]
    source_N: Tensor
    missing: Tensor

    def block(self, index: int) -> BlockProducts[KnownProduct | None]:
        """A block's products of all tokens; asked for once, since waves may give theirs away."""
        steps = BlockProducts(*zip(*(step for wave in self.waves for step in wave.block(index)), strict=True))
        return BlockProducts(
            query_key_value=self._known(steps.query_key_value, by_rows=True),
            attended=self._known(steps.attended, by_rows=True),
            gate_up=self._known(steps.gate_up, by_rows=False),  # only element-wise operations follow
            output=self._known(steps.output, by_rows=True),
        )

    def _known(self, parts: tuple[Tensor, ...], *, by_rows: bool) -> KnownProduct:
        if parts[0].is_contiguous():
            result_NM = torch.cat(parts).index_select(0, self.source_N)
        else:
            result_NM = torch.cat([part.t() for part in parts], dim=1).index_select(1, self.source_N).t()
        return KnownProduct(result_NM.contiguous() if by_rows else result_NM, self.missing)


class KeptProducts:
    """Keeps the products of completions that an update will be made on, and gives each away once.

    They belong to the weights that made them: the engine calls `clear` when it takes over others.
    """

    def __init__(self) -> None:
        self._entries: defaultdict[tuple[bytes, int], list[tuple[KeptWave, int]]] = defaultdict(list)
        self._num_bytes = 0

    def reserve(self, num_bytes: int) -> bool:
        """Whether there is room for so much more, which then is taken."""
        if self._num_bytes + num_bytes > MAX_BYTES:
            return False
        self._num_bytes += num_bytes
        return True

    def enter(self, prompt: TokenIds, token_ids: TokenIds, wave: KeptWave, row: int) -> None:
        """A completion of a wave can be taken."""
        self._entries[_key(np.concatenate([prompt, token_ids]), len(prompt))].append((wave, row))

    def take(
        self,
        token_BL: Tensor,
        num_prompt_tokens_B: NDArray[np.int64],
        num_tokens_B: NDArray[np.int64],
        place_BT: Tensor,
        num_packed: int,
    ) -> KnownTokens | None:
        """What is kept of the rows of a packed pass, or None.

        Parameters
        ----------
        place_BT
            Where completion tokens stand among the `num_packed` computed ones; the last of a row does not.
        """
        rows, places = token_BL.numpy(), place_BT.numpy()
        source_N = np.full(num_packed, -1)
        starts: dict[KeptWave, int] = {}
        num_kept = 0
        for row, (num_prompt, num_tokens) in enumerate(zip(num_prompt_tokens_B, num_tokens_B, strict=True)):
            entries = self._entries.get(_key(rows[row, :num_tokens], int(num_prompt)))
            if not entries:
                continue
            wave, kept_row = entries.pop()
            wave.num_untaken -= 1
            if wave not in starts:
                starts[wave] = num_kept
                num_kept += wave.num_tokens
            kept_T = wave.place_RT[kept_row, : num_tokens - num_prompt - 1]
            source_N[places[row, : len(kept_T)]] = np.where(kept_T < 0, -1, starts[wave] + kept_T)
        if not num_kept:
            return None
        missing = np.flatnonzero(source_N < 0)
        source_N[missing] = 0
        return KnownTokens(tuple(starts), torch.from_numpy(source_N), torch.from_numpy(missing))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._num_bytes = 0


def _key(tokens: NDArray[np.integer], num_prompt_tokens: int) -> tuple[bytes, int]:
    return tokens.astype(np.int32, copy=False).tobytes(), num_prompt_tokens
