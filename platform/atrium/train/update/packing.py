"""The layout of computed tokens: no padding, and a shared prompt only once.

The tokens of a micro-batch are concatenated: the distinct prompts, then each row's completion without its
last token, which predicts nothing. All token-wise operations of a model run on those N tokens. Only attention
needs whole rows, which it assembles and takes apart with this layout.

Axes: N computed tokens, P positions of all rows, B rows, T completion tokens, U distinct prompts, S segments
(the prompts and the completions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium.engines.collate import on_device
from atrium.train.update.micro_batches import split_by_length

_Index = NDArray[np.int64]

_BUCKET_COST_TOKENS = 2048
"""Fixed cost of one more bucket, in tokens of padding within attention."""


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """A gather operation, and the order in which its gradients are summed.

    Attributes
    ----------
    index
        The source item of each position.
    rounds
        Pairs of positions and the source items at these positions. No item occurs twice in a round, so
        that a GPU adds gradients round by round and always gets the same sum. Positions in no round, such
        as padding, have no gradient.
    num_shared
        Items with this index or a higher one occur in the first round only.
    """

    index: Tensor
    rounds: tuple[tuple[Tensor, Tensor], ...]
    num_shared: int

    @classmethod
    def of(cls, index: _Index, device: torch.device, held: NDArray[np.bool_] | None = None) -> Self:
        """Return the gather operation of `index`; positions at which `held` is False have no gradient."""
        place = np.arange(len(index)) if held is None else np.flatnonzero(held)
        order = np.argsort(index[place], kind="stable")
        _, counts = np.unique(index[place], return_counts=True)
        _, number = rows_and_offsets(counts)
        rounds = [place[order[number == one]] for one in range(counts.max(initial=1))]
        return cls(
            index=on_device(index, device),
            rounds=tuple((on_device(part, device), on_device(index[part], device)) for part in rounds),
            num_shared=max((int(index[part].max()) + 1 for part in rounds[1:]), default=0),
        )


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The layout of a micro-batch's computed tokens.

    Attributes
    ----------
    token_N, position_N
        Token ids, and each token's position in its row.
    source
        The packed token at each position of the rows, bucket after bucket; the first packed token
        (index 0) for padding. Padding is on the right, so causal attention keeps it from affecting
        any token. The first round of the gathering contains the first position of each token, where
        the token's own query is.
    bucket_shapes
        The number of rows in each bucket, and the number of positions per row.
    row_ends
        Boundaries of rows in `source` (int32 [B + 1]) if rows are not padded, else None.
    predicting
        For each completion token, row after row, the packed token whose state predicts it.

    Examples
    --------
    Two completions, (1, 2) and (3), of the prompt (7, 8): the prompt is computed once, and the last token of
    each completion is not computed, since it predicts nothing. Of six positions, two repeat the prompt.

    >>> packing = pack(
    ...     torch.tensor([[7, 8, 1, 2], [7, 8, 3, 0]]),
    ...     np.array([2, 2]),
    ...     np.array([4, 3]),
    ...     np.array([0, 0]),
    ...     padded=True,
    ... )
    >>> packing.token_N, packing.position_N
    (tensor([7, 8, 1]), tensor([0, 1, 2]))
    >>> packing.source.index, packing.source.rounds
    (tensor([0, 1, 0, 0, 1, 2]), ((tensor([0, 1, 5]), tensor([0, 1, 2])), (tensor([3, 4]), tensor([0, 1]))))
    >>> packing.predicting.index  # 1 and 3 are predicted from the 8, 2 from the 1
    tensor([1, 2, 1])
    """

    token_N: Tensor
    position_N: Tensor
    source: Gathering
    bucket_shapes: tuple[tuple[int, int], ...]
    row_ends: Tensor | None
    predicting: Gathering

    @property
    def place_N(self) -> Tensor:
        """The position of each token's own query: the token's first position in the rows."""
        return self.source.rounds[0][0]

    @property
    def bucket_lengths(self) -> tuple[int, ...]:
        """The number of positions per row in each bucket."""
        return tuple(length for _, length in self.bucket_shapes)


def pack(
    token_BL: Tensor,
    num_prompt_tokens_B: _Index,
    num_tokens_B: _Index,
    prompt_index_B: _Index,
    *,
    padded: bool,
) -> Packing:
    """Return the layout of rows, which are given in the format of `RolloutRows`.

    Parameters
    ----------
    prompt_index_B
        Rows with equal values have equal prompts, which are computed once.
    padded
        Whether to pad rows of similar length to buckets for attention; otherwise rows are concatenated.
    """
    segments = _Segments(num_prompt_tokens_B, num_tokens_B, prompt_index_B)
    width_B = segments.width_B
    row_N, column_N = segments.tokens()
    buckets = _buckets(width_B) if padded else [np.array([row]) for row in range(len(width_B))]
    shapes = tuple((len(bucket), int(width_B[bucket].max(initial=1))) for bucket in buckets)
    held, sources = [], []
    for bucket, (_, length) in zip(buckets, shapes, strict=True):
        column_L = np.arange(length)
        held.append((column_L < width_B[bucket, None]).ravel())
        sources.append(segments.tokens_at(bucket, column_L).ravel() * held[-1])
    row_M, offset_M = rows_and_offsets(num_tokens_B - num_prompt_tokens_B)
    column_M = num_prompt_tokens_B[row_M] - 1 + offset_M
    device = token_BL.device
    position_N = on_device(column_N, device)
    return Packing(
        token_N=token_BL[on_device(row_N, device), position_N],
        position_N=position_N,
        source=Gathering.of(np.concatenate(sources), device, np.concatenate(held)),
        bucket_shapes=shapes,
        row_ends=None if padded else on_device(np.cumsum([0, *width_B]).astype(np.int32), device),
        predicting=Gathering.of(segments.tokens_at(row_M, column_M[:, None])[:, 0], device),
    )


class _Segments:
    """The positions of prompts and completions among the computed tokens; distinct prompts come first.

    S segments: U distinct prompts, and the B completions without the last token of each.
    """

    def __init__(self, num_prompt_B: _Index, num_tokens_B: _Index, prompt_index_B: _Index) -> None:
        num_later_B = _num_later(num_prompt_B, num_tokens_B)
        _, owner_U, prompt_B = np.unique(prompt_index_B, return_index=True, return_inverse=True)
        self.width_B: _Index = num_prompt_B + num_later_B
        self._num_prompt_B = num_prompt_B
        self._row_S = np.concatenate([owner_U, np.arange(len(num_prompt_B))])
        self._length_S = np.concatenate([num_prompt_B[owner_U], num_later_B])
        self._start_S = np.cumsum(self._length_S) - self._length_S
        self._first_column_S = np.concatenate([np.zeros_like(owner_U), num_prompt_B])
        self._prompt_start_B = self._start_S[: len(owner_U)][prompt_B]
        self._later_start_B = self._start_S[len(owner_U) :]

    def tokens(self) -> tuple[_Index, _Index]:
        """Return the row and column of each of the N computed tokens."""
        row_N = np.repeat(self._row_S, self._length_S)
        return row_N, np.arange(len(row_N)) - np.repeat(self._start_S - self._first_column_S, self._length_S)

    def tokens_at(self, rows: _Index, column: _Index) -> _Index:
        """Return the indices [rows, columns] of the computed tokens at the given rows and columns."""
        num_prompt = self._num_prompt_B[rows, None]
        later_start = self._later_start_B[rows, None] - num_prompt
        start: _Index = np.where(column < num_prompt, self._prompt_start_B[rows, None], later_start)
        return start + column


def num_packed_tokens(num_prompt_tokens_B: _Index, num_tokens_B: _Index, prompt_index_B: _Index) -> int:
    """Return the number of tokens that packing computes for rows of these lengths."""
    _, owner_U = np.unique(prompt_index_B, return_index=True)
    return int(num_prompt_tokens_B[owner_U].sum() + _num_later(num_prompt_tokens_B, num_tokens_B).sum())


def _num_later(num_prompt_tokens_B: _Index, num_tokens_B: _Index) -> _Index:
    """Return, for each row, the number of completion tokens that predict another token: all but the last."""
    num_later_B: _Index = np.maximum(num_tokens_B - num_prompt_tokens_B - 1, 0)
    return num_later_B


def _buckets(width_B: _Index) -> list[_Index]:
    no_limit = int(width_B.sum()) * len(width_B)
    return split_by_length(width_B, max_tokens=no_limit, cost_per_part=_BUCKET_COST_TOKENS)


def rows_and_offsets(length_B: _Index) -> tuple[_Index, _Index]:
    """Return each item's row and index within the row, for concatenated rows of these lengths."""
    row = np.repeat(np.arange(len(length_B)), length_B)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(length_B) - length_B, length_B)
