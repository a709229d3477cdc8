"""Sampling with vLLM in this process, on a GPU or with vLLM's CPU build.

There is one engine per process. All samples of a call are in flight together, each with its own seed, and a
request's completions are returned as soon as they are finished, so that grading runs while others are still
being sampled. The weights are the trainer's: the engine starts from an architecture without weights, and
every update is copied in place. Log-probabilities are those of the sampled distribution
(`processed_logprobs`), and a stop token is kept in its completion.

vLLM's own tokenizer, generation defaults and end-of-sequence rules are not used. Prompts are token ids and
the policy defines the stop tokens, so that sampler and trainer always agree on both.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from atrium.base.errors import EngineError
from atrium.base.records import Completion
from atrium.base.watchdog import Watchdog
from atrium.engines.engine import EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.engines.sampling import check_requests, check_version
from atrium.engines.settings import VllmSettings
from atrium.engines.vllm_adapters import AdapterFiles
from atrium.engines.vllm_outputs import completions_of
from atrium.engines.vllm_start import (
    Place,
    Preemptions,
    described,
    explanation,
    sampling_parameters,
    start_vllm,
)
from atrium.engines.weights import check_weights
from atrium.models.lora import base_weights, has_lora, merged_weights
from atrium.models.shards import full_tensor, is_sharded
from atrium.models.texts import TextDecoder

_Place = tuple[int, int]
"""The position of a sample's completion: the index of its request, and its index in the request."""


class VllmEngine:
    """A vLLM engine with the architecture of `model`, initially with the weights of `model`.

    Parameters
    ----------
    model
        The policy: its configuration, its initial weights, and the names and shapes of later weights.
        Adapters are merged into the weights, so vLLM runs the plain architecture at full speed; with
        `rollout.adapters=separate`, vLLM applies them itself.
    tokenizer
        Turns completions into text, without special tokens other than reasoning markers.
    stop_token_ids
        Each of these ends a completion and is kept as its last token.
    settings, place
        Settings of vLLM, and the device, number format and context length.
    cache_dir
        Folder for cached files of vLLM, torch and Triton, such as compiled code.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Sequence[int],
        settings: VllmSettings,
        place: Place,
        cache_dir: Path,
    ) -> None:
        settings.check_machine(place.device)
        settings.prepare_environment(place.device, cache_dir)
        self._model = model
        self._decode = TextDecoder(tokenizer)
        self._stop_token_ids = tuple(stop_token_ids)
        self._settings = settings
        self._context_length = place.context_length
        self._weight_version = 0
        self._num_submitted = 0
        self._finished: dict[str, Any] = {}
        self._asleep: set[str] = set()
        self._is_stale = False
        self._is_out_of_step = False
        self._watchdog = Watchdog()
        self._engine: Any = None
        is_separate = settings.adapters == "separate" and has_lora(model)
        self._adapters = AdapterFiles(model) if is_separate else None
        self._adapter: Any = None
        with self._bounded("vLLM to start", settings.start_timeout_s):
            base = None if self._adapters is None else self._adapters.base(place.dtype)
            self._engine = start_vllm(model, settings, place, cache_dir, base)
        self._preemptions = Preemptions(self._engine)
        self._described = described(self._engine)
        # vLLM searches for stop strings in decoded text, but has no tokenizer of its own here. The attribute
        # is private (vLLM 0.25 to 0.33), and used only for requests with stop strings.
        self._engine.output_processor.tokenizer = tokenizer
        self._weights: Mapping[str, Tensor] = merged_weights(model)
        # On several ranks, the model's parameters have no values before the first `update_weights`.
        if not next(model.parameters()).is_meta:
            self._load()

    @property
    def facts(self) -> EngineFacts:
        """Properties that vLLM determined at startup, and its number of preemptions since then."""
        return EngineFacts(described=self._described, num_preempted=self._preemptions.num)

    @property
    def num_pending(self) -> int:
        """The number of samples that are waiting or being sampled."""
        return int(self._engine.get_num_unfinished_requests())

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions together once all are finished. Requests finish in any order.

        Requests that are appended to `requests` during iteration are answered too. Checks all requests when
        called, before anything is generated. Raises `EngineError` for a prompt that is empty or too long for
        `max_new_tokens`, for sampling parameters that vLLM's speculative decoding does not support, for
        log-probabilities that are not finite, if vLLM fails, and if weights change before the last
        completion. Ranks that share the engine must pass the same requests, append none, and consume all
        completions; if they stop earlier, later calls raise `EngineError`.
        """
        if self._engine is None:
            raise EngineError("vLLM has exited and cannot generate; resume the run with --resume")
        if self._is_out_of_step:
            raise EngineError(
                "the processes that share vLLM (rollout.tensor_parallel) are out of step, since some "
                "completions were not read to the end; resume from the last checkpoint with --resume"
            )
        check_requests(requests, sampling, context_length=self._context_length)
        is_cut = sampling.top_p < 1.0 or sampling.top_k is not None or sampling.min_p > 0
        if self._settings.num_speculative_tokens is not None and sampling.has_penalties:
            raise EngineError(
                "penalties cannot be combined with rollout.num_speculative_tokens, since their results "
                "may be wrong; set rollout.num_speculative_tokens=null, or remove the penalties"
            )
        if self._settings.num_speculative_tokens is not None and is_cut:
            # Seen with vLLM 0.32: log-probabilities of minus infinity with top_p, an error with top_k.
            raise EngineError(
                "top_p, top_k and min_p cannot be combined with rollout.num_speculative_tokens, which "
                "vLLM does not support; set rollout.num_speculative_tokens=null, or top_p=1, top_k=null "
                "and min_p=0"
            )
        return self._generate(requests, sampling)

    def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        version = self._weight_version
        in_flight: dict[str, _Place] = {}
        groups: dict[int, dict[int, Completion]] = {}
        num_seen = 0
        self._wake()
        try:
            while num_seen < len(requests) or in_flight:
                # The caller may have appended requests, or changed the weights, since the last yield.
                self._check_appended(requests, num_seen, sampling)
                for index in range(num_seen, len(requests)):
                    groups[index] = {}
                    in_flight |= self._submit(index, requests[index], sampling)
                    if not requests[index].sample_seeds:
                        yield Generation(request_index=index, completions=())
                    num_seen = index + 1
                check_version(version, self._weight_version)
                for (index, sample_index), completion in self._step(in_flight, sampling, version):
                    group = groups[index]
                    group[sample_index] = completion
                    if len(group) == len(requests[index].sample_seeds):
                        completions = tuple(group[place] for place in range(len(group)))
                        yield Generation(request_index=index, completions=completions)
                        del groups[index]
        finally:
            if in_flight and self._engine is not None:
                self._engine.abort_request(list(in_flight))
                self._is_out_of_step = self._settings.tensor_parallel > 1
            self._sleep()

    def _check_appended(
        self, requests: Sequence[GenerationRequest], num_seen: int, sampling: SamplingParams
    ) -> None:
        check_requests(requests[num_seen:], sampling, context_length=self._context_length)
        if 0 < num_seen < len(requests) and self._settings.tensor_parallel > 1:
            raise EngineError(
                "requests cannot be appended during iteration if several processes share vLLM "
                "(rollout.tensor_parallel), since the processes would get out of step; pass all requests "
                "at once"
            )

    def _submit(
        self, request_index: int, request: GenerationRequest, sampling: SamplingParams
    ) -> dict[str, _Place]:
        """Submit the samples of one request to vLLM, and return their positions by vLLM's request id."""
        from vllm import TokensPrompt

        samples: dict[str, _Place] = {}
        token_ids = request.prompt_token_ids.tolist()
        for sample_index, seed in enumerate(request.sample_seeds):
            name = str(self._num_submitted)
            self._num_submitted += 1
            parameters = sampling_parameters(sampling, seed, self._stop_token_ids)
            with self._bounded("vLLM to take a request", self._settings.step_timeout_s):
                prompt = TokensPrompt(prompt_token_ids=token_ids)
                self._engine.add_request(name, prompt, parameters, lora_request=self._adapter)
            samples[name] = (request_index, sample_index)
        return samples

    def _step(
        self, in_flight: dict[str, _Place], sampling: SamplingParams, version: int
    ) -> list[tuple[_Place, Completion]]:
        """Run one decoding step of vLLM. Return finished completions with their positions.

        The positions are removed from `in_flight`, whose keys are vLLM's request ids. Completions record
        `version` as the version of their weights.
        """
        if not in_flight:
            return []
        with self._bounded("a decoding step of vLLM", self._settings.step_timeout_s):
            # Outputs may belong to another call of `generate` that has not ended yet.
            self._finished |= {output.request_id: output for output in self._engine.step() if output.finished}
        names = [name for name in self._finished if name in in_flight]
        if not names:
            return []
        outputs = [self._finished.pop(name).outputs[0] for name in names]
        stops = () if sampling.ignore_stop else self._stop_token_ids
        completions = completions_of(outputs, self._decode, stops, version)
        return [
            (in_flight.pop(name), completion) for name, completion in zip(names, completions, strict=True)
        ]

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load a full `state_dict` as `version`, in place, and clear the caches of the old weights.

        A sleeping engine loads new weights when it wakes up, but sharded weights at once. Raises
        `EngineError`, with nothing changed, unless names and shapes are exactly the model's. Tied weights
        must appear under each of their names, with equal values.
        """
        check_weights(base_weights(self._model), weights)
        self._weights = weights
        self._weight_version = version
        self._is_stale = True
        # All ranks must gather shards at the same time, but they may wake up at different times.
        if not self._asleep or is_sharded(next(iter(weights.values()))):
            self._refresh()

    def _load(self) -> None:
        """Copy `self._weights` into vLLM's model, or write adapters that vLLM loads separately.

        If the LM head is tied to the embeddings, `self._weights` must still contain the head; otherwise vLLM
        would keep the old one.
        """
        with self._bounded("new weights to reach vLLM", self._settings.step_timeout_s):
            if self._adapters is None:
                # An iterator, so that each merged or gathered tensor is freed as soon as it is copied.
                weights = ((name, full_tensor(weight)) for name, weight in self._weights.items())
                self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            else:
                self._adapters.drop_base()
                self._adapter = self._adapters.request()
            self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._settings.sleep_level != 2:
            self._weights = {}  # vLLM has them now, so their owner may free them

    def _refresh(self) -> None:
        """Wake vLLM's weights if they are asleep, and load new weights if there are any.

        If vLLM's cache is asleep, it stays asleep.
        """
        if "weights" in self._asleep:
            self._rouse("weights")
        if self._is_stale:
            self._load()
            self._is_stale = False

    def _wake(self) -> None:
        """Wake weights and cache. New weights are loaded before the cache's memory is allocated again."""
        self._refresh()
        if "kv_cache" in self._asleep:
            self._rouse("kv_cache")

    def _rouse(self, pool: str) -> None:
        """Wake the weights or the cache.

        `pool` is vLLM's name of the memory pool, `weights` or `kv_cache` (checked in vLLM 0.25 to 0.33).
        """
        with self._bounded(f"vLLM's {pool} to wake up", self._settings.step_timeout_s):
            self._engine.wake_up(tags=[pool])
        self._asleep.remove(pool)

    def release_memory(self) -> None:
        """Free vLLM's memory on the device until the engine is used again, if `sleep_level` is set."""
        self._sleep()

    def _sleep(self) -> None:
        """Free vLLM's memory on the device if `sleep_level` is set and no samples are in flight."""
        level = self._settings.sleep_level
        is_idle = self._engine is not None and not self._engine.has_unfinished_requests()
        if level is None or "weights" in self._asleep or not is_idle:
            return
        if self._asleep:
            self._rouse("kv_cache")  # sleep() frees both pools, and must not free one twice
        with self._bounded("vLLM to go to sleep", self._settings.step_timeout_s):
            self._engine.sleep(level=level)
        self._asleep = {"weights", "kv_cache"}
        self._is_stale |= level == 2  # level 2 drops the weights

    def close(self) -> None:
        """Shut down vLLM and free its memory. Safe to call more than once."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with self._bounded("vLLM to end", self._settings.step_timeout_s):
                engine.engine_core.shutdown()
            del engine
            gc.collect()
        if self._adapters is not None:
            self._adapters.close()
        self._watchdog.close()

    @contextmanager
    def _bounded(self, what: str, timeout_s: float) -> Iterator[None]:
        """Run the body without warnings, and convert exceptions to `EngineError`; `what` names the wait.

        The process exits if the body takes more than `timeout_s` seconds.
        """
        try:
            with self._watchdog.bounded(what, timeout_s), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(explanation(what, error)) from error
