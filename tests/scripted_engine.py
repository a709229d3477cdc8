"""An engine that replays given completions: for tests of what consumes an engine, and for stored text.

It has no model. A script says what is answered to a prompt and a seed; the engine turns that into
tokens, ends it at a stop token or at the length limit, and keeps every other promise of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from atrium.base.errors import EngineError
from atrium.base.records import Completion, FinishReason, TokenIds
from atrium.base.seeding import derive_seed
from atrium.engines.engine import EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.engines.sampling import check_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCompletion:
    """What is answered once.

    `logprobs` holds one value per token of the text, plus one for the stop token where `stops`; None
    stands for 0 everywhere, the log-probability of a token that is certain. Without `stops` the
    answer is as if cut off by the length limit.
    """

    text: str
    logprobs: tuple[float, ...] | None = None
    stops: bool = True


Script = Callable[[TokenIds, int], ScriptedCompletion]
"""What is answered to a prompt's tokens and a sample's seed; equal arguments, equal answers."""


def replay(answers: Mapping[tuple[int, ...], Sequence[ScriptedCompletion]]) -> Script:
    """A script that chooses among the stored answers of a prompt, keyed by its token ids.

    The seed chooses, uniformly over seeds. Raises `EngineError` for a prompt without an answer.
    """

    def script(prompt_token_ids: TokenIds, seed: int) -> ScriptedCompletion:
        stored = answers.get(tuple(prompt_token_ids.tolist()), ())
        if not stored:
            raise EngineError(f"no answer is stored for the prompt {prompt_token_ids.tolist()}: store one")
        return stored[derive_seed(seed, "stored_answer") % len(stored)]

    return script


class ScriptedEngine:
    """Answers from `script`; temperature, `top_p`, `top_k` and the weights themselves have no effect.

    Parameters
    ----------
    script
        What to answer.
    encode, decode
        Text to token ids and back, both without special tokens.
    stop_token_ids
        The first of them ends a completion that stops.
    context_length
        The most tokens that a prompt and its completion may have together.
    """

    def __init__(
        self,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        stop_token_ids: Sequence[int],
        context_length: int,
    ) -> None:
        self._script = script
        self._encode = encode
        self._decode = decode
        self._stop_token_id = stop_token_ids[0]
        self._context_length = context_length
        self._weight_version = 0

    @property
    def facts(self) -> EngineFacts:
        """Nothing: it computes nothing."""
        return EngineFacts()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield the scripted completions of each request, in the order of the requests.

        Raises `EngineError` as every engine does, and for a script that does not fit: a number of
        log-probabilities other than that of the tokens, or under `ignore_stop` too few tokens.
        """
        check_requests(requests, sampling, context_length=self._context_length)
        return self._generate(requests, sampling)

    def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        version = self._weight_version
        for index, request in enumerate(requests):
            prompt = request.prompt_token_ids
            completions = tuple(
                self._completion(self._script(prompt, seed), sampling, version)
                for seed in request.sample_seeds
            )
            yield Generation(request_index=index, completions=completions)

    def _completion(self, scripted: ScriptedCompletion, sampling: SamplingParams, version: int) -> Completion:
        token_ids = list(self._encode(scripted.text))
        if scripted.stops:
            token_ids.append(self._stop_token_id)
        logprobs = scripted.logprobs if scripted.logprobs is not None else (0.0,) * len(token_ids)
        if len(logprobs) != len(token_ids):
            raise EngineError(
                f"the script gives {len(logprobs)} log-probabilities for the {len(token_ids)} tokens "
                f"of {scripted.text!r} (a stop token counts): give one for each token"
            )
        num_text = len(token_ids) - scripted.stops
        limit = min(sampling.max_new_tokens, num_text if sampling.ignore_stop else len(token_ids))
        if sampling.ignore_stop and limit < sampling.max_new_tokens:
            raise EngineError(
                f"the script answers {num_text} tokens where ignore_stop asks for exactly "
                f"max_new_tokens={sampling.max_new_tokens}: script longer answers"
            )
        stopped = scripted.stops and limit == len(token_ids)
        for length in range(1, limit + 1 if sampling.stop else 1):
            if any(string in self._decode(token_ids[:length]) for string in sampling.stop):
                limit, stopped = length, True
                break
        return Completion(
            token_ids=np.array(token_ids[:limit], np.int32),
            logprobs=np.array(logprobs[:limit], np.float32),
            text=self._decode(token_ids[: min(limit, num_text)]),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            weight_version=version,
        )

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Set the version; the weights are not looked at."""
        self._weight_version = version

    def release_memory(self) -> None:
        """Do nothing, as `close`."""

    def close(self) -> None:
        """Do nothing: the engine holds nothing."""
