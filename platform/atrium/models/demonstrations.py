"""Demonstrations of the built-in task as packed training batches.

A demonstration consists of prompt, completion and end token. The clean demonstrator works out every step. The
imperfect demonstrator often answers directly, often wrongly, and makes mistakes in its steps, so that the
resulting policy has something left to learn. Several demonstrations share a row of a batch and do not attend
to each other; with one padded demonstration per row, the computation would nearly double.

Axes: B rows, T positions in a row, N targets (the positions whose next token belongs to a completion or is an
end token).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from atrium.base.seeding import derive_seed
from atrium.data.arithmetic import (
    draw_questions,
    guessed_answer,
    slipping_solution,
    solution,
)
from atrium.data.settings import ArithmeticSettings
from atrium.models.tiny import PIECE

Demonstrator = Callable[[str], str]
"""A function from a question to a completion without the end token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """A batch whose rows each contain several demonstrations, and the tokens to predict.

    `attention_bias_B1TT` is 0 where a position may attend and -inf elsewhere. `position_id_BT` counts from 0
    in each demonstration. `target_id_N[i]` is the token after position `position_N[i]` of the flattened rows.
    """

    input_id_BT: Tensor
    position_id_BT: Tensor
    attention_bias_B1TT: Tensor
    position_N: Tensor
    target_id_N: Tensor


@dataclass(frozen=True, slots=True)
class _Demonstration:
    """The token ids of a demonstration; the first `num_prompt` are the prompt."""

    token_ids: list[int]
    num_prompt: int


def clean_demonstrator(question: str) -> str:
    """Return the worked solution of a question, with every step correct."""
    return solution(question)


def imperfect_demonstrator(
    rng: random.Random, *, direct_frac: float, direct_error_frac: float, slip_frac: float
) -> Demonstrator:
    """Return a demonstrator that gives some answers without steps, and makes mistakes.

    `direct_frac` is the share of answers without steps, `direct_error_frac` the probability that such an
    answer is wrong, and `slip_frac` the probability of a mistake in each step of the other answers.
    """

    def demonstrate(question: str) -> str:
        if rng.random() < direct_frac:
            return guessed_answer(question, rng, error_frac=direct_error_frac)
        return slipping_solution(question, rng, slip_frac=slip_frac)

    return demonstrate


def demonstration_batches(
    tokenizer: PreTrainedTokenizerBase,
    arithmetic: ArithmeticSettings,
    phases: Iterable[tuple[int, Demonstrator]],
    *,
    batch_size: int,
    seed: int,
) -> Iterator[PackedBatch]:
    """Yield batches of `batch_size` demonstrations.

    Each of `phases` is a number of batches and the demonstrator that answers their questions. Held-out
    questions are never demonstrated.
    """
    questions = draw_questions(arithmetic, f"warmup-{derive_seed(seed, 'warmup_questions')}")
    encode = _encoder(tokenizer)
    for num_batches, demonstrate in phases:
        for _ in range(num_batches):
            batch = islice(questions, batch_size)
            yield pack([encode(question, demonstrate(question)) for question in batch])


def longest_demonstration(max_operands: int) -> int:
    """Return an upper bound on the number of tokens of a demonstration with up to `max_operands` operands.

    The number includes prompt and end token.
    """
    num_digits = len(str(11 * max_operands))  # an operand adds at most 9, a mistake at most 2
    prompt = len("<>") + 2 * max_operands
    steps = (max_operands - 1) * (2 * num_digits + len("+9=;"))
    return prompt + steps + num_digits + len("[]$")


def pack(demonstrations: Sequence[_Demonstration]) -> PackedBatch:
    """Pack demonstrations into few rows, by first-fit in order of decreasing length."""
    # 1.5 times the longest: longer rows waste less padding, shorter ones less attention.
    num_columns = 3 * max(len(demonstration.token_ids) for demonstration in demonstrations) // 2
    rows: list[list[_Demonstration]] = []
    room: list[int] = []
    for demonstration in sorted(demonstrations, key=lambda item: -len(item.token_ids)):
        length = len(demonstration.token_ids)
        index = next((index for index, free in enumerate(room) if free >= length), len(rows))
        if index == len(rows):
            rows.append([])
            room.append(num_columns)
        rows[index].append(demonstration)
        room[index] -= length
    return _tensors(rows, num_columns)


def _tensors(rows: list[list[_Demonstration]], num_columns: int) -> PackedBatch:
    input_id_BT = np.zeros((len(rows), num_columns), dtype=np.int64)
    position_id_BT = np.zeros_like(input_id_BT)
    owner_BT = np.zeros_like(input_id_BT)  # 0 is padding, which attends to padding only
    positions: list[int] = []
    targets: list[int] = []
    for row, members in enumerate(rows):
        start = 0
        for owner, member in enumerate(members, start=1):
            length = len(member.token_ids)
            span = slice(start, start + length)
            input_id_BT[row, span] = member.token_ids
            position_id_BT[row, span] = np.arange(length)
            owner_BT[row, span] = owner
            first = row * num_columns + start
            positions.extend(range(first + member.num_prompt - 1, first + length - 1))
            targets.extend(member.token_ids[member.num_prompt :])
            start += length
    visible_BTT = np.tril(owner_BT[:, :, None] == owner_BT[:, None, :])
    bias_BTT = np.where(visible_BTT, np.float32(0), np.float32(-np.inf))
    return PackedBatch(
        input_id_BT=torch.from_numpy(input_id_BT),
        position_id_BT=torch.from_numpy(position_id_BT),
        attention_bias_B1TT=torch.from_numpy(bias_BTT[:, None]),
        position_N=torch.from_numpy(np.array(positions)),
        target_id_N=torch.from_numpy(np.array(targets)),
    )


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str, str], _Demonstration]:
    """Return a function that encodes (question, completion) as the chat template does, but faster."""
    framed: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": "="}], tokenize=False, add_generation_prompt=True
    )
    before, after = framed.split("=")
    opening, closing = (tokenizer.encode(text) for text in (before, after))
    ids = tokenizer.get_vocab()

    def encode(question: str, completion: str) -> _Demonstration:
        prompt = [*opening, *(ids[piece] for piece in PIECE.findall(question)), *closing]
        answer = [ids[piece] for piece in PIECE.findall(completion)]
        return _Demonstration([*prompt, *answer, tokenizer.eos_token_id], len(prompt))

    return encode
