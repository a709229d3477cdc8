"""How long a run takes on a GPU, computed from its bandwidth and operations; nothing here was measured.

Decoding is bound by what it reads, the cache of all tokens before each new one and the weights once for all
rows at a time, or by the program around the engine; passes are bound by matrix products. What the loop does
besides (grading, handing weights over, saving) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from atrium.models.shape import ModelShape
from atrium.planning.devices import Gpu

REACHED_FRAC = 0.3
"""The share of the peak that an update reaches with blocks that are not compiled."""
ENGINE_TOKEN_S = 40e-6
"""Seconds that Python around an engine in the trainer's process takes for a token."""
_ROWS_AT_ONCE = 256
_BFLOAT16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run asks of a device, in tokens.

    Attributes
    ----------
    num_steps
        Steps of the run.
    num_prompts, group_size
        Prompts in a batch, and completions of each.
    prompt_tokens, completion_tokens, answer_tokens
        Mean lengths of a prompt, of a completion, and of an evaluation's answer.
    num_answers
        Answers that all evaluations sample.
    num_epochs
        How often an update trains on each token.
    num_passes
        Passes over a batch without a gradient, such as the reference's.
    recomputes
        Whether activations are computed again in the backward pass.
    """

    num_steps: int
    num_prompts: int
    group_size: int
    prompt_tokens: float
    completion_tokens: float
    answer_tokens: float
    num_answers: int
    num_epochs: int = 1
    num_passes: int = 0
    recomputes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Seconds of a step's two parts, and of all evaluations of the run together."""

    sampling_s: float
    update_s: float
    evaluation_s: float
    num_steps: int

    @property
    def run_s(self) -> float:
        """Seconds of the whole run."""
        return self.num_steps * (self.sampling_s + self.update_s) + self.evaluation_s


def planned_duration(shape: ModelShape, work: Work, gpu: Gpu) -> Duration:
    """The time of a run on one GPU in bfloat16; a model's weights count with two operations a token.

    Examples
    --------
    1,024 completions of 3,000 tokens by Qwen3-1.7B take an H100 158 seconds of reading its cache:

    >>> shape = ModelShape(model_type="qwen3", num_parameters=1_720_574_976, num_tensors=310, num_layers=28,
    ...     hidden_size=2048, feed_forward_size=6144, vocabulary_size=151_936, num_heads=16,
    ...     num_key_value_heads=8, head_size=128, context_length=40_960, linear_maps=())
    >>> work = Work(num_steps=1, num_prompts=128, group_size=8, prompt_tokens=0, completion_tokens=3000,
    ...     answer_tokens=0, num_answers=0)
    >>> planned = planned_duration(shape, work, Gpu(989.0, 67.0, 3.35, 80))
    >>> round(planned.sampling_s), round(planned.update_s)
    (170, 107)
    """
    rows = work.num_prompts * work.group_size
    products_s = gpu.bfloat16 * 1e12 * REACHED_FRAC / shape.num_parameters
    trained = rows * work.completion_tokens + work.num_prompts * work.prompt_tokens
    operations = (8 if work.recomputes else 6) * work.num_epochs + 2 * work.num_passes
    return Duration(
        sampling_s=_decoding_s(shape, gpu, rows, work.prompt_tokens, work.completion_tokens),
        update_s=trained * operations / products_s,
        evaluation_s=_decoding_s(shape, gpu, work.num_answers, work.prompt_tokens, work.answer_tokens),
        num_steps=work.num_steps,
    )


def _decoding_s(shape: ModelShape, gpu: Gpu, rows: int, prompt: float, completion: float) -> float:
    cache = rows * (prompt * completion + completion**2 / 2) * shape.cache_numbers_per_token()
    weights = -(-rows // _ROWS_AT_ONCE) * completion * shape.num_parameters
    reading_s = _BFLOAT16 * (cache + weights) / (gpu.terabytes_s * 1e12)
    return max(reading_s, rows * completion * ENGINE_TOKEN_S)
