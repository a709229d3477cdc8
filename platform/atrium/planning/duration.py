"""Prediction of a run's duration from GPU data sheets and assumed efficiencies, without measurements.

Each decoding step reads the weights and the key-value cache of all active rows; an engine in the trainer's
process adds a Python overhead per token. New rows wait while the cache is full, and evicted rows are
recomputed. Forward and backward passes consist of matrix products and of element-wise operations that read
and write activations and logits. FSDP2's communication overlaps with the matrix products. Grading and saving
are not included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atrium.base.records import Concurrency
from atrium.config.schema import RunConfig
from atrium.config.tasks import ProblemsBenchmarkConfig, SuiteBenchmarkConfig
from atrium.models.shape import ModelShape
from atrium.planning.devices import Gpu, find_gpu
from atrium.planning.memory import CHUNK_LOGITS, TrainerDemand, activation_bytes

PRODUCTS_FRAC = 0.55
"""Assumed fraction of peak FLOP/s reached by the matrix products of forward and backward passes."""
READING_FRAC = 0.75
"""Assumed fraction of memory bandwidth reached by decoding and element-wise operations."""
PASSES_OVER_ACTIVATIONS = 4
"""Assumed bytes read and written by a forward pass, per byte it keeps for the backward pass."""
COMPILED_FRAC = 0.4
"""Assumed fraction of element-wise memory traffic that remains in compiled blocks."""
ENGINE_TOKEN_S = 40e-6
"""Python overhead of an engine in the trainer's process, in seconds per token."""
LOGIT_BYTES = {"torch": (40, 82), "triton": (4, 14)}
"""Bytes read and written per logit by `token_logprobs`, in a pass without and with a gradient.

torch's operations on float32 logits are counted one by one; a kernel of Triton reads a logit once, and
replaces it by its gradient. Logits and gradients are written and read by matrix products in bfloat16.
"""
HEAD_SUM_BYTES = 12
"""Bytes read and written per weight of the LM head to add a chunk's bfloat16 gradient to the float32 sum."""
_BFLOAT16, _FLOAT32 = 2, 4
_HOST_BYTES_S = 25e9
"""Bytes per second between a GPU and main memory, over PCIe."""
_SERVER_BYTES_S = 1e9
"""Bytes per second of weights sent to a server through a file: 0.54 GB took half a second on a CPU."""
_HOST_OPTIMIZER_S = 28 / 100e9 + 8 / _HOST_BYTES_S
"""Seconds per parameter of an AdamW update in main memory: 28 bytes read or written, 8 transferred."""
_NODES_BYTES_S = 50e9
"""Bytes per second between machines: one 400 Gbit/s adapter per GPU."""
_NUM_SIMULATED, _NUM_ROUNDS = 1024, 64
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Predicted seconds of each phase of a step, and of all evaluations of the run (`evaluation_s`).

    `passes_s` are the passes without gradients before the updates, and `hand_over_s` the transfers of
    weights. `overlaps` says whether the run samples during updates. `tokens_per_step` is the mean number of
    sampled tokens.
    """

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
        """Seconds per step: sampling plus training (or the longer one if they overlap), plus transfers."""
        training_s = self.passes_s + self.update_s
        both = max if self.overlaps else sum
        return both((self.sampling_s, training_s)) + self.hand_over_s

    @property
    def run_s(self) -> float:
        """Seconds of the whole run: all steps and all evaluations."""
        return self.num_steps * self.step_s + self.evaluation_s

    @property
    def evaluation_frac(self) -> float:
        """Fraction of the run's time spent on evaluations."""
        return self.evaluation_s / self.run_s if self.run_s else 0.0


def planned_run(
    config: RunConfig,
    shape: ModelShape,
    gpu_name: str,
    num_tokens: int,
    num_bytes: int | None = None,
) -> Duration | None:
    """Return the predicted time of a run with one GPU of type `gpu_name` per process.

    Prompts have `num_tokens` tokens. The lengths of completions are assumed to be uniformly distributed up to
    their limits. `num_bytes` is the GPU's memory and defaults to the value in its data sheet. The result is
    None for a run on the CPU, for an unknown GPU, for an engine of unknown speed, and if the engine's share
    of memory leaves no space for a cache.
    """
    rollout, optimizer, evaluation = config.rollout, config.optimizer, config.evaluation
    if (gpu := find_gpu(gpu_name)) is None or config.compute.device != "cuda":
        return None
    engine = rollout.concurrency(shape, config.compute.dtype, num_bytes or gpu.gigabytes * 10**9)
    if engine is None or not engine.cache_tokens:
        return None
    run = _Planned(config=config, shape=shape, engine=engine, gpu=gpu, prompt_tokens=num_tokens)
    num_updates = optimizer.num_epochs * optimizer.num_minibatches
    return Duration(
        sampling_s=run.decoding_s(rollout.num_prompts * rollout.group_size, rollout.max_new_tokens),
        passes_s=_num_passes(config) * run.pass_s(has_gradient=False),
        update_s=optimizer.num_epochs * run.pass_s(has_gradient=True) + num_updates * run.offloaded_s,
        hand_over_s=run.hand_over_s,
        evaluation_s=run.decoding_s(
            _num_evaluated(config) * evaluation.num_samples, evaluation.max_new_tokens
        ),
        num_steps=config.num_steps,
        overlaps=rollout.overlaps,
        tokens_per_step=run.num_sampled,
    )


def _num_passes(config: RunConfig) -> int:
    """Return the number of forward passes without gradients over a step's batch.

    With `compute.behavior_logprobs=auto`, the behavior policy's log-probabilities are assumed to be
    recomputed, as in bfloat16, unless completions are stored or sampled in continuous mode.
    """
    source, rollout = config.compute.behavior_logprobs, config.rollout
    # As in training, `auto` uses the engine if no single version of the weights sampled a completion.
    recomputes = source != "engine" and not (rollout.reads_stored or rollout.continuous)
    return sum(
        (
            recomputes,
            config.use.is_stale and "proximal" in config.method.anchors,
            config.method.needs.prepare_pass,
            config.algorithm.reference.kind != "none",
        )
    )


def _num_evaluated(config: RunConfig) -> int:
    """Return the number of problems in all evaluations of a run.

    A problem counts once for each evaluation.
    """
    every = config.evaluation.every_num_steps
    num_validations = 1 + (0 if every is None else config.num_steps // every)
    num_tests = 2 if config.evaluation.tests_before else 1
    return num_validations * (config.dataset.num_validation or 0) + num_tests * _num_problems(config)


def _num_problems(config: RunConfig) -> int:
    """Return the number of test problems in the configuration. Benchmarks of undeclared size count as 0."""
    benchmark = config.benchmark
    if isinstance(benchmark, SuiteBenchmarkConfig):
        return sum(_declared(member) for member in benchmark.members.values())
    if isinstance(benchmark, ProblemsBenchmarkConfig):
        return _declared(benchmark)
    return config.dataset.num_test


def _declared(benchmark: ProblemsBenchmarkConfig) -> int:
    return benchmark.num_problems or benchmark.expected_num_problems or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A run in bfloat16 with one `gpu` per process. `engine` describes each of the run's engines."""

    config: RunConfig
    shape: ModelShape
    engine: Concurrency
    gpu: Gpu
    prompt_tokens: int

    @property
    def is_apart(self) -> bool:
        """Whether the engines run as servers instead of inside the trainer's process."""
        return self.config.rollout.placement == "server"

    @property
    def num_sampled(self) -> float:
        """Mean number of tokens sampled per step."""
        rollout = self.config.rollout
        return rollout.num_prompts * rollout.group_size * rollout.max_new_tokens / 2

    @property
    def offloaded_s(self) -> float:
        """Seconds of an optimizer update in main memory, or 0 if the optimizer's state is on the GPU."""
        compute = self.config.compute
        return _HOST_OPTIMIZER_S * self.shape.num_parameters / compute.world_size if compute.offload else 0.0

    @property
    def hand_over_s(self) -> float:
        """Seconds per step for moving weights to the engine, and between GPU memory and main memory."""
        parameters = self.shape.num_parameters
        moved_s = 2 * _BFLOAT16 * parameters / _HOST_BYTES_S if self.config.rollout.sleeps else 0.0
        if self.is_apart:
            return moved_s + _BFLOAT16 * parameters / _SERVER_BYTES_S
        if self.config.compute.world_size > 1:
            return moved_s + _FLOAT32 * parameters / self._link_bytes_s
        return moved_s

    @property
    def _link_bytes_s(self) -> float:
        is_one_node = self.config.compute.num_nodes == 1
        return self.gpu.link_gigabytes_s * 1e9 if is_one_node else _NODES_BYTES_S

    def pass_s(self, *, has_gradient: bool) -> float:
        """Return the seconds of a pass over a step's batch: forward, and also backward if `has_gradient`."""
        shape, gpu, compute, rollout = self.shape, self.gpu, self.config.compute, self.config.rollout
        tokens = (self.num_sampled + rollout.num_prompts * self.prompt_tokens) / compute.world_size
        # A backward pass has two products per forward product: gradients of the states and of the weights.
        forwards = 1 + has_gradient * (2 + (compute.recompute_activations is True))
        products = forwards - (has_gradient and self.config.model.lora is not None)
        attention = (
            4 * shape.num_layers * shape.query_size * (self.prompt_tokens + rollout.max_new_tokens / 3)
        )
        head = has_gradient * 2 * shape.vocabulary_size * shape.hidden_size  # logits are computed once more
        products_s = (
            tokens * (products * (2 * shape.num_parameters + attention) + head) / (gpu.bfloat16 * 1e12)
        )
        demand = TrainerDemand(compute_dtype="bfloat16", device="cuda", micro_batch_tokens=1, batch_tokens=1)
        compiled = 1.0 if compute.compile is False else COMPILED_FRAC
        moved = compiled * forwards * PASSES_OVER_ACTIVATIONS * activation_bytes(shape, demand)
        moved += self._loss_bytes(has_gradient=has_gradient)
        computing_s = products_s / PRODUCTS_FRAC + tokens * moved / (READING_FRAC * gpu.terabytes_s * 1e12)
        if compute.world_size == 1:
            return computing_s
        # Each pass gathers the weights in bfloat16; a backward pass also reduces gradients in float32.
        exchanged = shape.num_parameters * (_BFLOAT16 + has_gradient * (_BFLOAT16 + _FLOAT32))
        num_passes = tokens / compute.max_micro_batch_tokens
        return max(computing_s, num_passes * exchanged / self._link_bytes_s)

    def _loss_bytes(self, *, has_gradient: bool) -> float:
        """Return the bytes per token that the loss reads and writes: logits and any gradient of the head."""
        shape, compute = self.shape, self.config.compute
        logits = shape.vocabulary_size * LOGIT_BYTES[compute.head_kernel][has_gradient]
        if not has_gradient or self.config.model.lora is not None or compute.head_kernel == "triton":
            return logits
        chunk = min(compute.max_micro_batch_tokens, max(1, CHUNK_LOGITS // shape.vocabulary_size))
        return logits + HEAD_SUM_BYTES * shape.vocabulary_size * shape.hidden_size / chunk

    def decoding_s(self, num_rows: int, longest: int) -> float:
        """Return the seconds that the engines need to sample `num_rows` answers of at most `longest` tokens.

        The lengths of answers are assumed to be uniformly distributed. At most 1,024 answers of one engine
        are simulated, in rounds of `longest` / 64 tokens. New rows wait while the cache is full; if active
        rows outgrow it, the youngest ones are evicted and recomputed.
        """
        shape, engine, gpu, rollout = self.shape, self.engine, self.gpu, self.config.rollout
        num_inside = self.config.compute.world_size // rollout.ranks_per_engine
        num_engines = rollout.num_outside if self.is_apart else num_inside
        rows_of_engine = -(-num_rows // num_engines)
        simulated, size = min(rows_of_engine, _NUM_SIMULATED), longest / _NUM_ROUNDS
        waiting = [(1 + int(place * _GOLDEN % 1 * _NUM_ROUNDS), 0) for place in range(simulated)]
        live: list[tuple[int, int]] = []
        read = rounds = prefilled = produced = 0.0
        while waiting or live:
            used: float = sum(self.prompt_tokens + done * size for _, done in live)
            has_room = True
            while len(live) > 1 and used + size * len(live) > engine.cache_tokens:
                row = live.pop()
                used -= self.prompt_tokens + row[1] * size
                waiting.append(row)
                has_room = False
            while has_room and waiting and len(live) < engine.num_rows:
                more = self.prompt_tokens + waiting[-1][1] * size
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
        # A server's Python overhead runs in another process and overlaps with its GPU's work.
        spent_s = max(reading_s, around_s) if self.is_apart else reading_s + around_s
        return spent_s * rows_of_engine / simulated if simulated else 0.0
