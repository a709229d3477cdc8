"""Conversion of vLLM's outputs to completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atrium.base.errors import EngineError, PolicyDivergedError
from atrium.base.records import Completion, FinishReason
from atrium.models.texts import TextDecoder


def completions_of(
    outputs: Sequence[Any], decode: TextDecoder, stop_token_ids: Sequence[int], version: int | None
) -> list[Completion]:
    """Convert finished outputs of vLLM to completions.

    `version` is the version of the weights that sampled the outputs. If it is None, versions are read from
    the outputs' `spans`. Raises `EngineError` for an output with a finish reason other than `stop` and
    `length`, for an output without one log-probability per token, and for log-probabilities that are not
    finite.
    """
    stopped = [bool(output.token_ids) and output.token_ids[-1] in stop_token_ids for output in outputs]
    texts = decode(
        [
            list(output.token_ids[: len(output.token_ids) - end])
            for output, end in zip(outputs, stopped, strict=True)
        ]
    )
    completions = []
    for output, text in zip(outputs, texts, strict=True):
        logprobs = np.asarray(output.logprobs.logprobs, dtype=np.float32)
        if len(logprobs) != len(output.token_ids) or output.finish_reason not in ("stop", "length"):
            raise EngineError(
                f"vLLM returned a completion with the finish reason '{output.finish_reason}' and "
                f"{len(logprobs)} log-probabilities for {len(output.token_ids)} tokens; resume from the "
                "last checkpoint with --resume"
            )
        if not np.isfinite(logprobs).all():
            raise PolicyDivergedError
        spans = tuple(output.spans) if version is None else ()
        completions.append(
            Completion(
                token_ids=np.array(output.token_ids, dtype=np.int32),
                logprobs=logprobs,
                text=text,
                finish_reason=FinishReason.STOP if output.finish_reason == "stop" else FinishReason.LENGTH,
                weight_version=min(one for one, _, _ in spans) if version is None else version,
                spans=spans if len(spans) > 1 else (),
            )
        )
    return completions
