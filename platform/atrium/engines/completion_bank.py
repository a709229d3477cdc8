"""A bank that maps each prompt to its stored completions, as token ids of the policy's tokenizer.

Text without token ids is encoded with the policy's tokenizer, and a stop token is appended unless the
completion is truncated. Stored token ids are used unchanged, after a check that they belong to this
tokenizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.base.errors import DataError
from atrium.base.records import REASONING_MARKERS, STORED_VERSION, Completion, FinishReason, Problem
from atrium.data.prompts import PromptEncoder
from atrium.engines.stored_rollouts import StoredCompletion

Bank = dict[tuple[int, ...], tuple[Completion, ...]]
"""The stored completions by the token ids of their prompt."""

_MAX_TEXTS_COMPARED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The parts of the policy's tokenizer that a bank needs.

    `encode` and `decode` neither add nor expect special tokens. The first of `stop_token_ids` is appended to
    an encoded text, unless the completion is truncated. Token ids are less than `num_tokens`.
    `unknown_token_id` is the token for text outside the vocabulary, or None if there is no such token.
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    stop_token_ids: tuple[int, ...]
    num_tokens: int
    unknown_token_id: int | None


def build_bank(
    stored: Sequence[StoredCompletion],
    vocabulary: Vocabulary,
    *,
    encode_prompt: PromptEncoder,
    max_new_tokens: int,
    num_needed: int,
) -> Bank:
    """Build a bank from stored completions. `encode_prompt` returns the token ids of a problem's prompt.

    Raises `DataError` for token ids of another tokenizer, for text that the tokenizer cannot encode, for a
    completion without tokens, for a number of log-probabilities other than one per token, for a completion
    longer than `max_new_tokens`, and for a prompt with fewer than `num_needed` completions.
    """
    every = max(1, len(stored) // _MAX_TEXTS_COMPARED)
    found: dict[tuple[int, ...], list[Completion]] = defaultdict(list)
    asked: dict[tuple[int, ...], Problem] = {}
    for number, one in enumerate(stored):
        prompt = tuple(encode_prompt(one.problem).tolist())
        asked[prompt] = one.problem
        found[prompt].append(_completion(one, vocabulary, compares_text=number % every == 0))
    _check_lengths(found, max_new_tokens)
    _check_numbers(found, asked, num_needed)
    return {prompt: tuple(completions) for prompt, completions in found.items()}


def _completion(one: StoredCompletion, vocabulary: Vocabulary, *, compares_text: bool) -> Completion:
    stops = one.finish_reason is FinishReason.STOP
    if one.token_ids is None:
        ids = np.asarray(vocabulary.encode(one.text), dtype=np.int64)
        if vocabulary.unknown_token_id is not None and (ids == vocabulary.unknown_token_id).any():
            raise DataError(
                f"{one.where} contains text that the policy's tokenizer cannot encode; use the model "
                "that wrote the text, or remove the row"
            )
        if stops:
            ids = np.append(ids, vocabulary.stop_token_ids[0])
        text = one.text
    else:
        ids = one.token_ids
        text = _own_text(one, vocabulary, compares_text=compares_text)
    if not len(ids):
        raise DataError(
            f"{one.where} has no tokens, but a truncated completion must have at least one; remove the row"
        )
    if one.logprobs is not None and len(one.logprobs) != len(ids):
        raise DataError(
            f"{one.where} has {len(one.logprobs)} log-probabilities, but the policy's tokenizer gives "
            f"{len(ids)} tokens, including the stop token; add the column token_ids, or remove the "
            "column logprobs"
        )
    unknown = np.full(len(ids), np.nan, dtype=np.float32)
    return Completion(
        token_ids=ids.astype(np.int32),
        logprobs=unknown if one.logprobs is None else one.logprobs,
        text=text,
        finish_reason=one.finish_reason,
        weight_version=STORED_VERSION,
        stored_reward=one.reward,
        own=one.own,
    )


def _own_text(one: StoredCompletion, vocabulary: Vocabulary, *, compares_text: bool) -> str:
    """Return the text of a completion's stored token ids, decoded without a stop token at the end.

    Raises `DataError` if the token ids cannot come from the policy's tokenizer: if an id is outside the
    vocabulary, or if the last id does not fit the finish reason. With `compares_text`, the error is also
    raised if the decoded text differs from the stored text (see `_compared`).
    """
    ids = one.token_ids
    assert ids is not None, "called for stored tokens"
    other = "use the model whose tokenizer wrote the ids, or remove the column token_ids"
    outside = ids[(ids < 0) | (ids >= vocabulary.num_tokens)]
    if len(outside):
        raise DataError(
            f"{one.where} has the token id {outside[0]}, but the policy's tokenizer has ids from 0 to "
            f"{vocabulary.num_tokens - 1}; {other}"
        )
    ends_in_stop = len(ids) > 0 and int(ids[-1]) in vocabulary.stop_token_ids
    if ends_in_stop != (one.finish_reason is FinishReason.STOP):
        raise DataError(
            f"{one.where} has the finish_reason {one.finish_reason.value}, but "
            f"{('ends' if ends_in_stop else 'does not end')} with a stop token of the policy; {other}"
        )
    text = vocabulary.decode(ids[: len(ids) - ends_in_stop].tolist())
    if compares_text and _compared(text.encode("utf-8", "replace").decode()) != _compared(one.text):
        raise DataError(f"{one.where} has token ids that do not decode to its text; {other}")
    return text


def _compared(text: str) -> str:
    """Return a stored or decoded text without reasoning markers and surrounding white space, for comparison.

    Rollouts stored by earlier versions of Atrium lack the markers that are special tokens of the tokenizer.
    """
    for marker in REASONING_MARKERS:
        text = text.replace(marker, "")
    return text.strip()


def _check_lengths(found: dict[tuple[int, ...], list[Completion]], max_new_tokens: int) -> None:
    lengths = [len(completion.token_ids) for group in found.values() for completion in group]
    num_long = sum(length > max_new_tokens for length in lengths)
    if num_long:
        raise DataError(
            f"rollout.max_new_tokens must be at least {max(lengths)}, the length of the longest stored "
            f"completion, got {max_new_tokens} ({num_long} of {len(lengths)} completions are longer); "
            "raise it"
        )


def _check_numbers(
    found: dict[tuple[int, ...], list[Completion]], asked: dict[tuple[int, ...], Problem], num_needed: int
) -> None:
    short = [prompt for prompt, completions in found.items() if len(completions) < num_needed]
    if short:
        least = min(short, key=lambda prompt: len(found[prompt]))
        raise DataError(
            f"a group needs {num_needed} stored completions, but {len(short)} of {len(found)} problems have "
            f"fewer: {asked[least].problem_id!r}, for example, has {len(found[least])}; lower "
            "rollout.group_size or rollout.stored_frac, or remove these problems"
        )
