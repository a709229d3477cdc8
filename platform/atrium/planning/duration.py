"""How long a run takes on GPUs, computed from their data sheets; nothing here was measured.

Decoding reads the cache of all live rows and the weights for each new token, and waits for the program around
an engine in the trainer's process. A cache that is full admits fewer rows, and rows that lose their place are
computed again. Passes are matrix products, and element-wise work that reads and writes activations. FSDP2's
exchange is hidden where it is shorter than the products. Grading and saving are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atrium.base.records import Concurrency
from atrium.models.shape import ModelShape
from atrium.planning.devices import Gpu
from atrium.planning.memory import TrainerDemand, activation_bytes

PRODUCTS_FRAC = 0.55
"""The share of the peak that matrix products of passes reach. Assumed."""
READING_FRAC = 0.75
"""The share of the memory's bandwidth that decoding and element-wise work reach. Assumed."""
PASSES_OVER_ACTIVATIONS = 4
"""How often a forward pass reads or writes as many bytes as it keeps for its backward pass. Assumed."""
COMPILED_FRAC = 0.4
"""The share of element-wise reading and writing that is left in compiled blocks. Assumed."""
ENGINE_TOKEN_S = 40e-6
"""Seconds that Python around an engine in the trainer's process takes for a token."""
_BFLOAT16, _FLOAT32 = 2, 4
_HOST_BYTES_S = 25e9
"""Between a GPU and main memory, over PCIe."""
_SERVER_BYTES_S = 1e9
"""Of weights through a file to a server: 0.54 GB took half a second on a CPU."""
_HOST_OPTIMIZER_S = 28 / 100e9 + 8 / _HOST_BYTES_S
"""Seconds per parameter of an update in main memory: AdamW's reads and writes, and both transfers."""
_NODES_BYTES_S = 50e9
"""Between machines: an adapter of 400 Gbit/s for each GPU."""
_NUM_SIMULATED, _NUM_ROUNDS = 1024, 64
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run asks of its devices.

    Attributes
    ----------
    num_steps
        Steps of the run.
    num_prompts, group_size
        Prompts in a batch, and completions of each.
    prompt_tokens, max_new_tokens, max_answer_tokens
        Mean length of a prompt, and the limits of a completion and of an evaluation's answer, up to which
        lengths are spread evenly.
    num_answers
        Answers that all evaluations sample.
    num_engines
        Engines that share the sampling.
    is_apart, overlaps
        Whether engines are servers, and whether those sample during updates.
    weights_moved
        How often a step moves the engine's weights between the GPU and main memory.
    num_trainers, num_nodes
        Processes that share the training, and their machines.
    micro_batch_tokens
        Tokens of one pass of an update.
    num_epochs, num_updates
        How often a step trains on each token, and how often it moves the weights.
    num_passes
        Passes over a batch without a gradient, such as the reference's.
    recomputes, compiles, adapts, offloads
        Whether activations are computed again in the backward pass, blocks are compiled, adapters alone are
        trained, and the optimizer's state lies in main memory.
    """

    num_steps: int
    num_prompts: int
    group_size: int
    prompt_tokens: float
    max_new_tokens: int
    max_answer_tokens: int
    num_answers: int
    num_engines: int = 1
    is_apart: bool = False
    overlaps: bool = False
    weights_moved: int = 0
    num_trainers: int = 1
    num_nodes: int = 1
    micro_batch_tokens: int = 16384
    num_epochs: int = 1
    num_updates: int = 1
    num_passes: int = 0
    recomputes: bool = False
    compiles: bool = False
    adapts: bool = False
    offloads: bool = False

    @property
    def num_sampled(self) -> float:
        """Tokens that a step samples."""
        return self.num_prompts * self.group_size * self.max_new_tokens / 2

    @property
    def num_trained(self) -> float:
        """Tokens of a batch, each prompt once."""
        return self.num_sampled + self.num_prompts * self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Predicted seconds of a step by phase, and of all evaluations of the run together."""

    sampling_s: float
    passes_s: float
    update_s: float
    hand_over_s: float
    evaluation_s: float
    num_steps: int
    overlaps: bool
    tokens_per_step: float

    @property
    def step_s(self) -> float:
        """Seconds of a step; its sides work at once where they overlap."""
        training_s = self.passes_s + self.update_s
        both = max if self.overlaps else sum
        return both((self.sampling_s, training_s)) + self.hand_over_s

    @property
    def run_s(self) -> float:
        """Seconds of the whole run."""
        return self.num_steps * self.step_s + self.evaluation_s

    @property
    def evaluation_frac(self) -> float:
        """The share of the run that evaluations take."""
        return self.evaluation_s / self.run_s if self.run_s else 0.0


def planned_duration(shape: ModelShape, work: Work, engine: Concurrency, gpu: Gpu) -> Duration:
    """The time of a run in bfloat16, where each process has such a GPU and each engine has `engine`.

    Examples
    --------
    512 completions of up to 8,192 tokens by Qwen3-1.7B on an H100, with 30 GB of cache:

    >>> shape = ModelShape(model_type="qwen3", num_parameters=1_720_574_976, num_tensors=310, num_layers=28,
    ...     hidden_size=2048, feed_forward_size=6144, vocabulary_size=151_936, num_heads=16,
    ...     num_key_value_heads=8, head_size=128, context_length=40_960, linear_maps=())
    >>> work = Work(num_steps=1, num_prompts=64, group_size=8, prompt_tokens=256, max_new_tokens=8192,
    ...     max_answer_tokens=0, num_answers=0)
    >>> engine = Concurrency(num_rows=512, cache_tokens=261_000, token_bytes=114_688)
    >>> planned = planned_duration(shape, work, engine, Gpu(989.0, 67.0, 3.35, 80, 450.0))
    >>> round(planned.sampling_s), round(planned.update_s)
    (421, 87)
    """
    parameters, has_shards = shape.num_parameters, work.num_trainers > 1
    moved_s = work.weights_moved * _BFLOAT16 * parameters / _HOST_BYTES_S
    if work.is_apart:
        moved_s += _BFLOAT16 * parameters / _SERVER_BYTES_S
    elif has_shards:
        moved_s += _FLOAT32 * parameters / _link_bytes_s(work, gpu)
    offloaded_s = _HOST_OPTIMIZER_S * parameters / work.num_trainers if work.offloads else 0.0
    rows = work.num_prompts * work.group_size
    return Duration(
        sampling_s=_decoding_s(shape, work, engine, gpu, num_rows=rows, longest=work.max_new_tokens),
        passes_s=work.num_passes * _pass_s(shape, work, gpu, has_gradient=False),
        update_s=work.num_epochs * _pass_s(shape, work, gpu, has_gradient=True)
        + work.num_updates * offloaded_s,
        hand_over_s=moved_s,
        evaluation_s=_decoding_s(
            shape, work, engine, gpu, num_rows=work.num_answers, longest=work.max_answer_tokens
        ),
        num_steps=work.num_steps,
        overlaps=work.overlaps,
        tokens_per_step=work.num_sampled,
    )


def _link_bytes_s(work: Work, gpu: Gpu) -> float:
    return _NODES_BYTES_S if work.num_nodes > 1 else gpu.link_gigabytes_s * 1e9


def _pass_s(shape: ModelShape, work: Work, gpu: Gpu, *, has_gradient: bool) -> float:
    """Seconds of a pass over a batch, backward pass included where it has a gradient."""
    tokens = work.num_trained / work.num_trainers
    # A backward pass makes two products for each of a forward pass: for the states, and for the weights.
    forwards = 1 + has_gradient * (2 + work.recomputes)
    products = forwards - (has_gradient and work.adapts)
    attention = 4 * shape.num_layers * shape.query_size * (work.prompt_tokens + work.max_new_tokens / 3)
    products_s = tokens * products * (2 * shape.num_parameters + attention) / (gpu.bfloat16 * 1e12)
    demand = TrainerDemand(compute_dtype="bfloat16", device="cuda", micro_batch_tokens=1, batch_tokens=1)
    compiled = COMPILED_FRAC if work.compiles else 1.0
    moved = compiled * forwards * PASSES_OVER_ACTIVATIONS * activation_bytes(shape, demand)
    computing_s = products_s / PRODUCTS_FRAC + tokens * moved / (READING_FRAC * gpu.terabytes_s * 1e12)
    if work.num_trainers == 1:
        return computing_s
    # Weights in bfloat16 for each pass over the layers, and gradients in float32.
    exchanged = shape.num_parameters * (_BFLOAT16 + has_gradient * (_BFLOAT16 + _FLOAT32))
    return max(computing_s, tokens / work.micro_batch_tokens * exchanged / _link_bytes_s(work, gpu))


def _decoding_s(
    shape: ModelShape, work: Work, engine: Concurrency, gpu: Gpu, *, num_rows: int, longest: int
) -> float:
    """Seconds in which the engines share so many answers, of lengths spread evenly up to `longest`.

    Simulated for at most 1,024 answers of an engine, in 64 rounds of their longest one. A row that finds the
    cache full waits; where live rows outgrow it, the youngest lose their place and are computed again.
    """
    rows_of_engine = -(-num_rows // work.num_engines)
    simulated, size = min(rows_of_engine, _NUM_SIMULATED), longest / _NUM_ROUNDS
    waiting = [(1 + int(place * _GOLDEN % 1 * _NUM_ROUNDS), 0) for place in range(simulated)]
    live: list[tuple[int, int]] = []
    read = rounds = prefilled = produced = 0.0
    while waiting or live:
        used: float = sum(work.prompt_tokens + done * size for _, done in live)
        has_room = True
        while len(live) > 1 and used + size * len(live) > engine.cache_tokens:
            row = live.pop()
            used -= work.prompt_tokens + row[1] * size
            waiting.append(row)
            has_room = False
        while has_room and waiting and len(live) < engine.num_rows:
            more = work.prompt_tokens + waiting[-1][1] * size
            if live and used + more + size * (len(live) + 1) > engine.cache_tokens:
                break
            used, prefilled = used + more, prefilled + more
            live.append(waiting.pop())
        rounds += 1
        produced += size * len(live)
        read += size * (used + size * len(live) / 2)
        live = [(length, done + 1) for length, done in live if done + 1 < length]
    weights = rounds * size * _BFLOAT16 * shape.num_parameters / engine.num_devices
    reading_s = (read * engine.token_bytes + weights) / (READING_FRAC * gpu.terabytes_s * 1e12)
    reading_s += prefilled * 2 * shape.num_parameters / (PRODUCTS_FRAC * gpu.bfloat16 * 1e12)
    around_s = produced * ENGINE_TOKEN_S
    # A server computes while another of its processes answers.
    spent_s = max(reading_s, around_s) if work.is_apart else reading_s + around_s
    return spent_s * rows_of_engine / simulated if simulated else 0.0
