"""The engine that samples with a pool of vLLM servers."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor

from atrium.base.records import Completion
from atrium.engines.engine import EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.engines.sampling import check_requests
from atrium.engines.server.dealing import Batch, Dealer, Sample
from atrium.engines.server.pool import ServerPool
from atrium.engines.server.transfer import NcclSender
from atrium.engines.server.weights import WeightFiles
from atrium.engines.vllm_outputs import completions_of
from atrium.engines.vllm_start import sampling_fields
from atrium.engines.weights import check_weights
from atrium.models.lora import base_weights, merged_weights
from atrium.models.policy import Policy
from atrium.models.texts import TextDecoder

_T = TypeVar("_T")
_GIVEN_UP = "sampling was cancelled"


class ServerEngine:
    """An engine that samples with a pool of vLLM servers, which load the policy's weights at startup.

    Parameters
    ----------
    policy
        The policy whose weights are sampled from.
    pool
        The pool of servers, which the engine starts and closes.
    files
        Writer of the weight files that servers read.
    per_server
        Maximum number of concurrent requests per server.
    context_length
        Maximum number of tokens of a prompt and its completion together.
    folders
        Folders that are deleted when the engine is closed.
    sender
        Sender of weights from the trainer's GPU, or None if servers read weight files.
    """

    def __init__(
        self,
        policy: Policy,
        pool: ServerPool,
        *,
        files: WeightFiles,
        per_server: int,
        context_length: int,
        folders: Sequence[Path],
        sender: NcclSender | None = None,
    ) -> None:
        self.pool = pool
        self._model = policy.model
        self._decode = TextDecoder(policy.tokenizer)
        self._stop_token_ids = tuple(policy.stop_token_ids)
        self._files, self._sender = files, sender
        self.context_length = context_length
        self._folders = tuple(folders)
        self._weight_version = 0
        self._interrupted, self._is_closed = threading.Event(), False
        self._batches: set[Batch] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._loop.run_forever, name="server-engine", daemon=True)
        self._thread.start()
        self._started = time.monotonic()
        self._dealer = Dealer(pool, per_server)
        try:
            weights = merged_weights(policy.model)
            self._run(pool.start(None if sender else files.write(weights, 0), 0))
            if sender is not None:
                sender.send(weights, 0, pool, self._submit)
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> EngineFacts:
        """Properties of the servers from startup, their number of preemptions, and their mean idle time.

        The properties are those of the first server, with the number of servers. The preemptions are summed
        over the servers that respond, for each server since its last start.
        """
        servers = self.pool.servers
        counts = self._run(self.pool.counters())
        now = time.monotonic()
        busy_s = sum(one.busy_s + (now - one.busy_since if one.num_requests else 0.0) for one in servers)
        return EngineFacts(
            described={**servers[0].described, "servers": len(servers)},
            num_preempted=int(counts.get("num_preemptions", 0.0)),
            idle_s=max(0.0, now - self._started - busy_s / len(servers)),
        )

    @property
    def num_pending(self) -> int:
        """The number of samples that are waiting or being sampled, including those of streams."""
        return sum(len(batch.waiting) + len(batch.tasks) for batch in tuple(self._batches))

    @property
    def keeps_weights(self) -> bool:
        """Whether weights are sent as files, so that servers can load earlier weights again."""
        return self._sender is None

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions together once all are finished. Requests finish in any order.

        Checks all requests when called, and samples with the weights that are current at that time. Raises
        `EngineError` if servers are lost repeatedly, and `InterruptedError` after `interrupt`.
        """
        return self.generate_by(self._weight_version, requests, sampling)

    def at_this_version(self) -> VersionSampler:
        """Return a sampler that is fixed to the current version of the weights, even after later updates."""
        return VersionSampler(self, self._weight_version)

    def generate_by(
        self, version: int, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Sample as `generate` does, but with the weights of `version`.

        Either the weight files of `version` must exist, or servers must already have loaded these weights.
        """
        check_requests(requests, sampling, context_length=self.context_length)
        return self._generate(version, tuple(requests), sampling)

    def stream(self, sampling: SamplingParams) -> CompletionStream:
        """Return a stream of completions that uses the servers' current weights at each token."""
        return CompletionStream(self, sampling)

    def _generate(
        self, version: int, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        batch = Batch(version=version, complete=self._completed(sampling, version))
        for index, request in enumerate(requests):
            if request.sample_seeds:
                batch.num_samples[index] = len(request.sample_seeds)
                batch.waiting.extend(self._samples(index, request, sampling))
            else:
                yield Generation(request_index=index, completions=())
        self._batches.add(batch)
        task = self._submit(self._answered(batch))
        try:
            while batch.num_samples:
                if self._interrupted.is_set():
                    raise InterruptedError(_GIVEN_UP)
                yield batch.next()
        finally:
            self._batches.discard(batch)
            task.cancel()

    def _completed(
        self, sampling: SamplingParams, version: int | None
    ) -> Callable[[Sequence[SimpleNamespace]], Sequence[Completion]]:
        """Return a function that converts answers to completions sampled with the weights of `version`.

        If `version` is None, the versions are read from each answer.
        """
        stops = () if sampling.ignore_stop else self._stop_token_ids
        return lambda answers: completions_of(answers, self._decode, stops, version)

    def _samples(self, index: int, request: GenerationRequest, sampling: SamplingParams) -> list[Sample]:
        return [
            Sample(
                place=(index, number),
                token_ids=request.prompt_token_ids.tolist(),
                parameters=sampling_fields(sampling, seed, self._stop_token_ids),
            )
            for number, seed in enumerate(request.sample_seeds)
        ]

    async def _answered(self, batch: Batch) -> None:
        try:
            await self._dealer.answer(batch)
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            batch.found.put(InterruptedError(_GIVEN_UP) if is_cancelled else error)
            raise

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load a full `state_dict` as `version` into the servers.

        Servers that are ready and idle load the weights before this method returns. So do busy servers in
        continuous mode, or if weights are sent over NCCL. All other servers load the weights later, if these
        are still needed. If names or shapes differ from the model's, raises `EngineError` before anything
        changes. Also raises `EngineError` if the servers have failed.
        """
        check_weights(base_weights(self._model), weights)
        self._interrupted.clear()
        self._weight_version = version
        if self._sender is not None:
            self._sender.send(weights, version, self.pool, self._submit)
        else:
            self._run(self.pool.update(self._files.write(weights, version), version))

    def release_memory(self) -> None:
        """Do nothing, since servers have their own devices."""

    def interrupt(self) -> None:
        """Make `generate` raise `InterruptedError`, in all threads, until `update_weights` is called.

        This also ends iterations that are under way. A `CompletionStream` continues, but its `next` raises
        `InterruptedError` once, after returning all requests that finished before the interruption.
        """
        self._interrupted.set()
        for batch in list(self._batches):
            batch.found.put(InterruptedError(_GIVEN_UP))

    def close(self) -> None:
        """End the servers that this engine started, and delete their files. Harmless when called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._run(self.pool.close())
        if self._sender is not None:
            self._sender.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine in the engine's event loop, and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the engine's event loop, and return its result."""
        task = self._submit(work)
        try:
            return task.result()
        except BaseException:
            task.cancel()
            raise


@dataclass(frozen=True)
class VersionSampler:
    """A sampler with the weights of one version, even after the engine has received newer weights."""

    engine: ServerEngine
    weight_version: int

    @property
    def facts(self) -> EngineFacts:
        """The facts of the server engine."""
        return self.engine.facts

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Sample as `ServerEngine.generate` does, but with the weights of `weight_version`."""
        return self.engine.generate_by(self.weight_version, requests, sampling)


class CompletionStream:
    """An endless stream of completions, in which each token is sampled with the server's current weights.

    Completions record the versions of these weights. One thread may call `add` while another calls `next`.
    """

    def __init__(self, engine: ServerEngine, sampling: SamplingParams) -> None:
        self._engine = engine
        self._sampling = sampling
        self._batch = Batch(version=None, complete=engine._completed(sampling, None))
        engine._batches.add(self._batch)
        self._task = engine._submit(engine._answered(self._batch))

    def add(self, index: int, request: GenerationRequest) -> None:
        """Add a request under `index`; raise `EngineError` for a prompt that is empty or too long."""
        engine = self._engine
        check_requests((request,), self._sampling, context_length=engine.context_length)
        self._batch.num_samples[index] = len(request.sample_seeds)
        samples = engine._samples(index, request, self._sampling)
        engine._submit(self._extend(samples)).result()

    async def _extend(self, samples: Sequence[Sample]) -> None:
        self._batch.waiting.extend(samples)
        self._engine.pool.notify()

    def next(self) -> Generation:
        """Wait for the next finished request, and return its completions.

        Raises the errors of `ServerEngine.generate`.
        """
        return self._batch.next()

    def close(self) -> None:
        """Cancel sampling, so that `next` raises `InterruptedError`."""
        self._engine._batches.discard(self._batch)
        self._task.cancel()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # anyio raises InvalidStateError if a socket becomes readable just as its request is cancelled.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)
