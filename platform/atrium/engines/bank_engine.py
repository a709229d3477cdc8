"""An engine that answers from a bank of stored completions, for all of a group or for a part of it.

A group takes its stored completions without replacement, so whole stored groups stay whole; which ones
depends on the prompt and on the group's first seed. In this it differs from other engines, whose
completions depend on their own seed alone. What is not stored is sampled by a live engine, which holds the
policy's weights; a bank cannot answer for a policy that did not write it, so evaluation uses the live engine
and never this one.
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
    """Answers the first `stored_frac` of a request's seeds from `bank`, and the others by `live`.

    Parameters
    ----------
    bank
        Stored completions by prompt.
    live
        The engine of the policy. With `stored_frac` 1 it samples nothing here.
    stored_frac
        In (0, 1]; of a request's seeds this share, rounded to the nearest whole number, is stored.
    context_length
        The most tokens that a prompt and its completion may have together.
    """

    def __init__(self, bank: Bank, live: Sampler, *, stored_frac: float, context_length: int) -> None:
        self._bank = bank
        self._live = live
        self._stored_frac = stored_frac
        self._context_length = context_length

    @property
    def facts(self) -> EngineFacts:
        """Those of the live engine."""
        return self._live.facts

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions, the stored ones first.

        Temperature, `top_p` and `top_k` hold for live completions only. Raises `EngineError` as every
        engine does, for a prompt of which too little is stored, for a stored completion longer than
        `max_new_tokens`, and for `ignore_stop`, which stored text cannot follow.
        """
        check_requests(requests, sampling, context_length=self._context_length)
        if sampling.stop:
            raise EngineError("a prompt's stop strings cannot end stored text: leave out model.prompt.stop")
        if sampling.ignore_stop:
            raise EngineError("ignore_stop asks for text that is not stored: use a live engine")
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
        """The request's part of the bank, drawn without replacement."""
        num_wanted = round(self._stored_frac * len(request.sample_seeds))
        if num_wanted == 0:
            return ()
        prompt = request.prompt_token_ids
        completions = self._bank.get(tuple(prompt.tolist()), ())
        if len(completions) < num_wanted:
            raise EngineError(
                f"{len(completions)} completions are stored for the prompt {_shown(prompt)} and a group "
                f"takes {num_wanted}: store more, or ask for smaller groups"
            )
        keys = [derive_seed(request.sample_seeds[0], "stored", place) for place in range(len(completions))]
        chosen = np.argsort(np.array(keys), kind="stable")[:num_wanted]
        drawn = tuple(completions[place] for place in chosen)
        longest = max(len(completion.token_ids) for completion in drawn)
        if longest > max_new_tokens:
            raise EngineError(
                f"a stored completion has {longest} tokens and max_new_tokens is {max_new_tokens}: ask for "
                "at least as many, what is stored is not cut"
            )
        return drawn


def _shown(prompt: TokenIds) -> str:
    return str(prompt[:8].tolist()) + (f" and {len(prompt) - 8} more tokens" if len(prompt) > 8 else "")
