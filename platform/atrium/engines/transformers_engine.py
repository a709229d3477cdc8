"""Sampling with a transformers model in this process, on CPUs and on CUDA devices.

The engine decodes left-padded batches with a key-value cache, through the public interface of transformers.
Each distinct prompt is computed once and shared by its completions. Finished rows are dropped when this saves
time. Masks and positions are explicit, since padding would change the probabilities without them. The model
may be the trainer's own, so that no second copy of the weights is in memory.

Axes: N rows (completions in flight), F rows that have just finished, U distinct prompts, L prompt tokens with
padding, T new tokens, B positions whose random numbers are hashed at once, V vocabulary, S stop tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StopStringCriteria

from atrium.base.errors import PolicyDivergedError
from atrium.base.records import Completion, FinishReason, Logprobs, TokenIds
from atrium.engines.decoding import Decoder, check_decoding, inference_mode
from atrium.engines.engine import EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.engines.qwen3_decoder import Qwen3Decoder, has_fused_form
from atrium.engines.sampling import (
    Occurrences,
    check_requests,
    check_version,
    sample_keys,
    sample_tokens,
    uniforms,
)
from atrium.engines.weights import load_weights
from atrium.models.texts import TextDecoder

# Cost of copying the cache of the remaining rows, in decoding steps of these rows. Finished rows are dropped
# once the computation wasted on them exceeds this cost.
_DROP_COST_STEPS = 0.5
# Random numbers are hashed for this many positions at a time.
_UNIFORM_BLOCK = 32


@dataclass(kw_only=True, eq=False)
class TransformersEngine:
    """An engine that samples from `model`, a causal language model of transformers, in waves (batches).

    Parameters
    ----------
    model
        The policy. It is in evaluation mode only while the engine computes.
    tokenizer
        Turns completions into text, without special tokens other than reasoning markers.
    stop_token_ids
        Each of these ends a completion and is kept as its last token.
    pad_token_id
        Pads shorter prompts on the left; it is masked, so any valid token will do.
    context_length
        Maximum number of tokens of a prompt and its completion together.
    max_batch_tokens
        Limit on rows * (longest prompt + max_new_tokens) of a wave, and thereby on memory; a single row
        that exceeds it runs alone. None for no limit.
    unit_samples
        Maximum number of completions in a unit, or None for no limit. A unit consists of consecutive
        requests, and only completions of the same unit share waves.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: Sequence[int]
    pad_token_id: int
    context_length: int
    max_batch_tokens: int | None = None
    unit_samples: int | None = None
    _weight_version: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_decoding(self.model)
        self._decode = TextDecoder(self.tokenizer)

    @property
    def facts(self) -> EngineFacts:
        """Empty facts, since all properties of this engine follow from its settings."""
        return EngineFacts()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions together once all are finished. Requests finish in any order.

        Checks all requests when called, before anything is generated. Raises `EngineError` for a prompt that
        is empty or too long for `max_new_tokens`, for logits that are not finite, and if weights change
        before the last completion.
        """
        check_requests(requests, sampling, context_length=self.context_length)
        return self._generate(requests, sampling)

    def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        version = self._weight_version
        decoder_type = Qwen3Decoder if has_fused_form(self.model) else Decoder
        unfinished: dict[int, dict[int, Completion]] = {}
        for index, request in enumerate(requests):
            if request.sample_seeds:
                unfinished[index] = {}
            else:
                yield Generation(request_index=index, completions=())
        # A stop string always ends within the last token: an earlier match would have ended the completion.
        ends_in_string = None
        if sampling.stop and not sampling.ignore_stop:
            ends_in_string = StopStringCriteria(self.tokenizer, sampling.stop)
        for rows in self._waves(requests, sampling.max_new_tokens):
            # Nothing is yielded inside `inference_mode`, so that the mode does not affect the caller.
            with inference_mode(self.model):
                decoder = decoder_type(
                    self.model,
                    [row.prompt for row in rows],
                    pad_token_id=self.pad_token_id,
                    max_new_tokens=sampling.max_new_tokens,
                )
                wave = _Wave(decoder, rows, sampling, self.stop_token_ids, ends_in_string)
            while wave.num_live:
                check_version(version, self._weight_version)
                with inference_mode(self.model):
                    samples = wave.run()
                for row, completion in self._completions(samples, version):
                    index, group = row.request_index, unfinished[row.request_index]
                    group[row.sample_index] = completion
                    if len(group) == len(requests[index].sample_seeds):
                        completions = tuple(group[place] for place in range(len(group)))
                        yield Generation(request_index=index, completions=completions)
                        del unfinished[index]

    def _waves(self, requests: Sequence[GenerationRequest], max_new_tokens: int) -> Iterator[list[_Row]]:
        for places in cut_units(requests, self.unit_samples):
            rows = [
                _Row(place, sample_index, seed, requests[place].prompt_token_ids)
                for place in places
                for sample_index, seed in enumerate(requests[place].sample_seeds)
            ]
            yield from _plan_waves(rows, max_new_tokens, self.max_batch_tokens)

    def _completions(self, samples: Sequence[_Sample], version: int) -> list[tuple[_Row, Completion]]:
        num_kept = [len(sample.token_ids) - sample.stopped for sample in samples]
        texts = self._decode(
            [sample.token_ids[:num].tolist() for sample, num in zip(samples, num_kept, strict=True)]
        )
        return [
            (
                sample.row,
                Completion(
                    token_ids=sample.token_ids,
                    logprobs=sample.logprobs,
                    text=text,
                    finish_reason=FinishReason.STOP if sample.finished else FinishReason.LENGTH,
                    weight_version=version,
                ),
            )
            for sample, text in zip(samples, texts, strict=True)
        ]

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load a full `state_dict` as `version`. Tensors that share the model's memory are not copied.

        Raises `EngineError`, with nothing changed, unless names and shapes are exactly the model's. Tied
        weights must appear under each of their names, with equal values.
        """
        load_weights(self.model, weights)
        self._weight_version = version

    def release_memory(self) -> None:
        """Do nothing: between generations the engine has no memory besides the model's."""

    def close(self) -> None:
        """Do nothing: the engine has no resources of its own."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A completion to sample: its request, its index within the request, its seed and its prompt."""

    request_index: int
    sample_index: int
    seed: int
    prompt: TokenIds


@dataclass(frozen=True, slots=True)
class _Sample:
    """The sampled tokens of a row, with their log-probabilities.

    `stopped` is True if the last token is a stop token. `finished` is also True if the last token completes a
    stop string. If `finished` is False, the length limit ended the sample.
    """

    row: _Row
    token_ids: TokenIds
    logprobs: Logprobs
    stopped: bool
    finished: bool


def cut_units(requests: Sequence[GenerationRequest], unit_samples: int | None) -> list[range]:
    """Divide requests into units of consecutive requests, and return the range of indices of each unit.

    The shape of a batch changes the last bits of its results, so the division depends only on the requests.
    All requests of a unit have the same `GenerationRequest.wave`. A unit has at most `unit_samples` samples,
    unless a single request has more; None means no limit.
    """
    units: list[range] = []
    first = num_samples = 0
    for place, request in enumerate(requests):
        num_samples += len(request.sample_seeds)
        is_full = unit_samples is not None and num_samples > unit_samples and place > first
        if is_full or request.wave != requests[first].wave:
            units.append(range(first, place))
            first, num_samples = place, len(request.sample_seeds)
    return [*units, range(first, len(requests))] if requests else []


def _plan_waves(rows: list[_Row], max_new_tokens: int, max_batch_tokens: int | None) -> Iterator[list[_Row]]:
    """Split a unit's completions into waves (batches), with the longest prompts first to reduce padding."""
    rows = sorted(rows, key=lambda row: -len(row.prompt))
    while rows:
        num_rows = len(rows)
        if max_batch_tokens is not None:
            num_rows = max(1, max_batch_tokens // (len(rows[0].prompt) + max_new_tokens))
        yield rows[:num_rows]
        rows = rows[num_rows:]


@dataclass(eq=False)
class _Wave:
    """Completions that are decoded together, one token each per step."""

    decoder: Decoder
    rows: list[_Row]
    sampling: SamplingParams
    stop_token_ids: Sequence[int]
    ends_in_string: StopStringCriteria | None

    def __post_init__(self) -> None:
        rows, sampling = self.rows, self.sampling
        self.num_live = len(rows)
        self._num_steps = 0
        self._num_wasted = 0
        device = self.decoder.logit_NV.device
        self._key_N = sample_keys([row.seed for row in rows], device)
        self._stop_S = torch.tensor(self.stop_token_ids, dtype=torch.int64, device=device)
        prompts = [row.prompt for row in rows]
        self._occurrences = Occurrences(prompts, self.decoder.logit_NV) if sampling.has_penalties else None
        self._is_live_N = torch.ones(len(rows), dtype=torch.bool, device=device)
        shape = (sampling.max_new_tokens, len(rows))
        self._token_TN = torch.empty(shape, dtype=torch.int64, device=device)
        self._logprob_TN = torch.empty(shape, dtype=torch.float32, device=device)

    def run(self) -> list[_Sample]:
        """Decode until at least one completion is finished, and return the newly finished completions.

        At least one completion must be unfinished, so `num_live` must be greater than 0.
        """
        while True:
            position = self._num_steps
            if position % _UNIFORM_BLOCK == 0:
                positions = range(position, position + _UNIFORM_BLOCK)
                self._uniform_BN = uniforms(self._key_N, positions)
            if position > 0:
                self._drop_finished()
                self.decoder.step(self._token_TN[position - 1])
            logit_NV = self.decoder.logit_NV
            if self._occurrences is not None:
                logit_NV = self._occurrences.penalized(logit_NV, self.sampling)
            token_N, logprob_N = sample_tokens(
                logit_NV,
                self._uniform_BN[position % _UNIFORM_BLOCK],
                sampling=self.sampling,
                stop_S=self._stop_S,
            )
            self._token_TN[position] = token_N
            self._logprob_TN[position] = logprob_N
            if self._occurrences is not None:
                self._occurrences.add(token_N)
            self._num_steps += 1
            if samples := self._take_finished(token_N):
                return samples

    def _take_finished(self, token_N: Tensor) -> list[_Sample]:
        is_last = self._num_steps == self.sampling.max_new_tokens
        if self.sampling.ignore_stop and not is_last:
            return []  # no stop token can be sampled
        stopped_N = finished_N = self._is_live_N & (token_N.unsqueeze(-1) == self._stop_S).any(-1)
        if self.ends_in_string is not None:
            token_NT = self._token_TN[: self._num_steps].T
            finished_N = stopped_N | self._is_live_N & self.ends_in_string(token_NT, None)
        place_F = (self._is_live_N if is_last else finished_N).nonzero().squeeze(-1)
        if len(place_F) == 0:
            return []
        self._is_live_N[place_F] = False
        self.num_live -= len(place_F)
        token_FT = self._token_TN[: self._num_steps, place_F].T.to(torch.int32).cpu().numpy()
        logprob_FT = self._logprob_TN[: self._num_steps, place_F].T.cpu().numpy()
        if not np.isfinite(logprob_FT).all():
            raise PolicyDivergedError
        ends_F = zip(stopped_N[place_F].tolist(), finished_N[place_F].tolist(), strict=True)
        return [
            _Sample(self.rows[place], token_FT[index].copy(), logprob_FT[index].copy(), stopped, finished)
            for index, (place, (stopped, finished)) in enumerate(zip(place_F.tolist(), ends_F, strict=True))
        ]

    def _drop_finished(self) -> None:
        self._num_wasted += len(self.rows) - self.num_live
        if self._num_wasted <= _DROP_COST_STEPS * self.num_live:
            return
        self._num_wasted = 0
        keep_N = self._is_live_N.nonzero().squeeze(-1)
        self.decoder.select(keep_N)
        if self._occurrences is not None:
            self._occurrences.select(keep_N)
        self._key_N = self._key_N[keep_N]
        self._uniform_BN = self._uniform_BN[:, keep_N]
        self._is_live_N = self._is_live_N[keep_N]
        self._token_TN = self._token_TN[:, keep_N]
        self._logprob_TN = self._logprob_TN[:, keep_N]
        self.rows = [self.rows[place] for place in keep_N.tolist()]
