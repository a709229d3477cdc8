"""Sampling with transformers' continuous batching: the engine for a GPU on which vLLM cannot be installed.

Completions of all lengths share one paged key-value cache; a thread of the library decodes while those that
are finished are graded. Tokens are drawn by the sample's seed and the log-probabilities are those of the
distribution that was drawn from (`paged_draw`), so nothing is computed again. The weights are a copy of the
engine's own, in the precision of rollouts. Each call builds a cache and a thread and ends them with it: no
key or value outlives the weights that computed it, and the memory is free during updates.

Neither CUDA graphs nor the library's asynchronous steps are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.continuous_batching import ContinuousBatchingManager

from atrium.errors import EngineError, PolicyDivergedError
from atrium.records import Completion, FinishReason
from atrium.rollout.engine import Generation, GenerationRequest, SamplingParams
from atrium.rollout.paged_draw import SeededDraw
from atrium.rollout.paged_start import (
    PagedSettings,
    explained,
    explanation,
    new_manager,
    num_blocks,
    num_steps,
    stop,
)
from atrium.rollout.sampling import check_requests
from atrium.rollout.weights import load_weights
from atrium.watchdog import Watchdog

# How often a wait looks whether a step was made.
_POLL_S = 0.05


@dataclass(slots=True, eq=False)
class _Run:
    """One call's samples in flight, by name, and what decodes them."""

    manager: ContinuousBatchingManager
    draw: SeededDraw
    requests: Sequence[GenerationRequest]
    version: int
    in_flight: dict[str, tuple[int, int]]
    groups: dict[int, dict[int, Completion]] = field(default_factory=dict)


class PagedEngine:
    """Samples with `model`, which is the engine's own, and the weights that `update_weights` gives.

    Parameters
    ----------
    model
        A causal language model of transformers, on the device and in the precision of rollouts. Nothing else
        may use it.
    tokenizer
        Turns completions into text, without special tokens.
    stop_token_ids
        Each of these ends a completion and is kept as its last token.
    settings
        How continuous batching runs.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Sequence[int],
        settings: PagedSettings,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._stop_token_ids = tuple(stop_token_ids)
        self._settings = settings
        self._weight_version = 0
        self._runs: list[_Run] = []
        self._watchdog = Watchdog()
        try:
            model.set_attn_implementation(settings.attention)
        except (ImportError, ValueError, OSError) as error:
            raise EngineError(
                f"rollout.attention={settings.attention} cannot be used here "
                f"({' '.join(str(error).split())[:200]}); allowed is sdpa, which needs nothing more"
            ) from error
        model.eval()

    @property
    def weight_version(self) -> int:
        """The number of updates behind the weights that `generate` samples from."""
        return self._weight_version

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions once, as soon as all of them are finished, in any order.

        Checks all requests when called, before anything is generated. Raises `EngineError` for a prompt that
        is empty, leaves no room for `max_new_tokens` or does not fit the cache with them, for sampling
        parameters without a meaning, for logits that are not finite, when the library fails, and when weights
        change before the last completion.
        """
        check_requests(requests, sampling, context_length=self._settings.context_length)
        size = num_blocks(self._model, self._settings, requests, sampling)
        return self._generate(list(requests), sampling, size)

    def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, size: int
    ) -> Iterator[Generation]:
        yield from (
            Generation(request_index=index, completions=())
            for index, request in enumerate(requests)
            if not request.sample_seeds
        )
        if not any(request.sample_seeds for request in requests):
            return
        with self._bounded("the cache of continuous batching"):
            run = self._start(requests, sampling, size)
        try:
            while run.in_flight:
                if self._weight_version != run.version:
                    raise EngineError(
                        f"the weights went from version {run.version} to {self._weight_version} while "
                        "completions were sampled: take all completions before updating weights"
                    )
                if run not in self._runs:
                    raise EngineError("the engine was closed before all completions were taken")
                for name, completion in self._take_finished(run, sampling):
                    request_index, place = run.in_flight.pop(name)
                    group = run.groups.setdefault(request_index, {})
                    group[place] = completion
                    if len(group) == len(requests[request_index].sample_seeds):
                        del run.groups[request_index]
                        yield Generation(
                            request_index=request_index,
                            completions=tuple(group[place] for place in range(len(group))),
                        )
        finally:
            self._end(run)

    def _start(self, requests: Sequence[GenerationRequest], sampling: SamplingParams, size: int) -> _Run:
        """Hand all samples to a new manager, in order and before it decodes, so that steps repeat exactly."""
        places = [
            (index, place)
            for index, request in enumerate(requests)
            for place in range(len(request.sample_seeds))
        ]
        max_rows = min(self._settings.max_num_seqs, len(places))
        draw = SeededDraw(
            seeds=[requests[index].sample_seeds[place] for index, place in places],
            prompt_lengths=[len(requests[index].prompt_token_ids) for index, _ in places],
            sampling=sampling,
            stop_token_ids=self._stop_token_ids,
            max_rows=max_rows,
            device=self._model.device,
        )
        manager = new_manager(self._model, draw, self._settings, max_rows=max_rows, num_blocks=size)
        run = _Run(manager, draw, requests, self._weight_version, {})
        stops = [-1] if sampling.ignore_stop else list(self._stop_token_ids)
        for sample, (index, place) in enumerate(places):
            manager.add_request(
                requests[index].prompt_token_ids.tolist(),
                request_id=str(sample),
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=stops,
                sample=sample,
            )
            run.in_flight[str(sample)] = (index, place)
        manager.start()
        self._runs.append(run)
        return run

    def _take_finished(self, run: _Run, sampling: SamplingParams) -> list[tuple[str, Completion]]:
        """Wait for at most a step, and return what is finished by then, by the names of samples."""
        with self._bounded("a decoding step of continuous batching"):
            num_before = num_steps(run.manager)
            outputs: list[Any] = []
            while not outputs and num_steps(run.manager) == num_before:
                is_running = run.manager.is_running()
                output = run.manager.get_result(timeout=_POLL_S)
                while output is not None:
                    outputs.append(output)
                    output = run.manager.get_result(timeout=0)
                if not outputs and not is_running:
                    raise RuntimeError("its thread has ended before all completions were finished")
        for output in outputs:
            if output.error is not None:
                raise EngineError(explanation("a decoding step of continuous batching", output.error))
        return self._completions(run, outputs, sampling) if outputs else []

    def _completions(
        self, run: _Run, outputs: Sequence[Any], sampling: SamplingParams
    ) -> list[tuple[str, Completion]]:
        stops = () if sampling.ignore_stop else self._stop_token_ids
        stopped = [output.generated_tokens[-1] in stops for output in outputs]
        texts = self._tokenizer.batch_decode(
            [
                output.generated_tokens[: len(output.generated_tokens) - end]
                for output, end in zip(outputs, stopped, strict=True)
            ],
            skip_special_tokens=True,
        )
        completions = []
        for output, text, is_stopped in zip(outputs, texts, stopped, strict=True):
            logprobs = run.draw.logprobs(int(output.request_id), len(output.generated_tokens))
            if not np.isfinite(logprobs).all():
                raise PolicyDivergedError
            completion = Completion(
                token_ids=np.array(output.generated_tokens, dtype=np.int32),
                logprobs=logprobs,
                text=text,
                finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
                weight_version=run.version,
            )
            completions.append((output.request_id, completion))
        return completions

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy a full `state_dict` as `version`; what was still being sampled ends.

        Raises `EngineError`, with nothing changed, unless names and shapes are exactly the model's; tied
        weights stand under each of their names, with equal values.
        """
        self._end_all()
        load_weights(self._model, weights)
        self._weight_version = version

    def close(self) -> None:
        """End the threads and give back their caches. Harmless when called twice."""
        self._end_all()
        self._watchdog.close()

    def _end_all(self) -> None:
        for run in list(self._runs):
            self._end(run)

    def _end(self, run: _Run) -> None:
        """End a call's thread and drop its cache. Harmless when called twice."""
        if run in self._runs:
            self._runs.remove(run)
            with self._bounded("continuous batching to end"):
                stop(run.manager)

    @contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """Run the library's code: in bounded time, without its log, any failure as one line."""
        # It logs each failure with a traceback, and raises it or hands it out as well.
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL + 1)
        with explained(what), self._watchdog.bounded(what, self._settings.step_timeout_s):
            yield
