"""An engine that returns stored completions from a bank, for all or part of each group.

Stored completions of a prompt are drawn without replacement, so a request for all of them returns each
exactly once. The draw depends on the prompt and the first seed of the group. In other engines, by contrast, a
completion does not depend on the seeds of other completions. A live engine with the policy's weights samples
the rest of the group. Evaluation always uses the live engine, since stored completions do not represent the
current policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from atrium.base.errors import EngineError
from atrium.base.records import Completion, TokenIds
from atrium.base.seeding import derive_seed
from atrium.engines.completion_bank import Bank
from atrium.engines.engine import EngineFacts, Generation, GenerationRequest, Sampler, SamplingParams
from atrium.engines.sampling import check_requests


class BankEngine:
    """An engine that takes part of each request's completions from `bank`, and the rest from `live`.

    Parameters
    ----------
    bank
        Stored completions by prompt.
    live
        The engine with the policy's weights; it samples nothing if `stored_frac` is 1.
    stored_frac
        Share of a request's completions that come from the bank, in (0, 1]. It is rounded to whole
        completions.
    context_length
        Maximum number of tokens of a prompt and its completion together.
    """

    def __init__(self, bank: Bank, live: Sampler, *, stored_frac: float, context_length: int) -> None:
        self._bank = bank
        self._live = live
        self._stored_frac = stored_frac
        self._context_length = context_length

    @property
    def facts(self) -> EngineFacts:
        """The properties of the running live engine."""
        return self._live.facts

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions, with stored completions before live ones.

        Temperature, `top_p` and `top_k` apply to live completions only. Besides the errors that every engine
        raises, this method raises `EngineError` for a prompt with too few stored completions, for a drawn
        completion longer than `max_new_tokens`, and for `ignore_stop` and stop strings, which cannot be
        applied to stored text.
        """
        check_requests(requests, sampling, context_length=self._context_length)
        if sampling.stop:
            raise EngineError("stop strings cannot be used with stored completions; remove model.prompt.stop")
        if sampling.ignore_stop:
            raise EngineError(
                "ignore_stop cannot be used with stored completions; use an engine that samples"
            )
        stored = [self._stored(request, sampling.max_new_tokens) for request in requests]
        return self._generate(requests, sampling, stored)

    def _generate(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingParams,
        stored: Sequence[tuple[Completion, ...]],
    ) -> Iterator[Generation]:
        waiting = []
        for index, (request, completions) in enumerate(zip(requests, stored, strict=True)):
            if len(completions) == len(request.sample_seeds):
                yield Generation(request_index=index, completions=completions)
            else:
                waiting.append(index)
        remaining = [
            replace(requests[index], sample_seeds=requests[index].sample_seeds[len(stored[index]) :])
            for index in waiting
        ]
        if not remaining:
            return
        for generation in self._live.generate(remaining, sampling):
            index = waiting[generation.request_index]
            yield Generation(request_index=index, completions=stored[index] + generation.completions)

    def _stored(self, request: GenerationRequest, max_new_tokens: int) -> tuple[Completion, ...]:
        """Draw the stored part of a request's completions from the bank, without replacement.

        Raises `EngineError` if the bank has too few completions of the prompt, or if a drawn completion has
        more than `max_new_tokens` tokens.
        """
        num_wanted = round(self._stored_frac * len(request.sample_seeds))
        if num_wanted == 0:
            return ()
        prompt = request.prompt_token_ids
        completions = self._bank.get(tuple(prompt.tolist()), ())
        if len(completions) < num_wanted:
            raise EngineError(
                f"the prompt {_shown(prompt)} has {len(completions)} stored completions, but a group "
                f"needs {num_wanted}; store more completions, or use smaller groups"
            )
        keys = [derive_seed(request.sample_seeds[0], "stored", place) for place in range(len(completions))]
        chosen = np.argsort(np.array(keys), kind="stable")[:num_wanted]
        drawn = tuple(completions[place] for place in chosen)
        longest = max(len(completion.token_ids) for completion in drawn)
        if longest > max_new_tokens:
            raise EngineError(
                f"max_new_tokens must be at least {longest}, the length of the longest stored "
                f"completion, got {max_new_tokens}; raise it"
            )
        return drawn


def _shown(prompt: TokenIds) -> str:
    return str(prompt[:8].tolist()) + (f" and {len(prompt) - 8} more tokens" if len(prompt) > 8 else "")
