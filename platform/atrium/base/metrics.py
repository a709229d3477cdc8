"""Declarations of all quantities that a run records: name, meaning, unit, and reduction.

A name has the form `stage/quantity`. Trackers, figures and displays read the declarations in this module. A
value is stored as a sum and a count, or as an extreme, so that it can be combined exactly over micro-batches,
minibatches and ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """The rule that combines several values of a quantity into one."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Quantity:
    """The declaration of one recorded quantity; `unit` is empty for a number without a unit."""

    name: str
    meaning: str
    unit: str = ""
    reduction: Reduction = Reduction.MEAN


@dataclass(frozen=True, slots=True)
class Metric:
    """A recorded value: `total` is the sum, maximum or minimum of `count` items, according to `reduction`."""

    total: float
    count: float = 1.0
    reduction: Reduction = Reduction.MEAN

    @property
    def value(self) -> float | None:
        """The mean, sum, maximum or minimum, according to `reduction`, or None if the count is 0."""
        if self.count == 0:
            return None
        return self.total / self.count if self.reduction is Reduction.MEAN else self.total

    def merge(self, other: Metric) -> Metric:
        """Combine this value with another value of the same quantity. A value with count 0 is ignored."""
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        match self.reduction:
            case Reduction.MAX:
                total = max(self.total, other.total)
            case Reduction.MIN:
                total = min(self.total, other.total)
            case _:
                total = self.total + other.total
        return Metric(total, self.count + other.count, self.reduction)


_SUM, _MAX, _MIN = Reduction.SUM, Reduction.MAX, Reduction.MIN

# Rollouts: sampled completions and their grades.
REWARD = Quantity("rollout/reward", "mean reward of the sampled completions")
CORRECT_FRAC = Quantity("rollout/correct_frac", "share of completions graded correct")
INCORRECT_FRAC = Quantity("rollout/incorrect_frac", "share of completions graded incorrect")
NO_ANSWER_FRAC = Quantity("rollout/no_answer_frac", "share of completions in which no answer was found")
TIMED_OUT_FRAC = Quantity("rollout/timed_out_frac", "share of completions for which the grader timed out")
CRASHED_FRAC = Quantity("rollout/crashed_frac", "share of completions for which the grader failed")
WORKED_FRAC = Quantity(
    "rollout/worked_frac",
    "probability at the start of the step that an answer shows its steps instead of only the result",
)
LENGTH_MEAN = Quantity("rollout/completion_length", "mean completion length", "tokens")
LENGTH_MAX = Quantity("rollout/completion_length_max", "longest completion", "tokens", _MAX)
TRUNCATED_FRAC = Quantity("rollout/truncated_frac", "share of completions cut off by the length limit")
NUM_TOKENS = Quantity("rollout/num_tokens", "completion tokens sampled in the step", "tokens", _SUM)
NUM_GROUPS_SAMPLED = Quantity(
    "rollout/num_groups_sampled", "groups sampled, including those filtered out", "groups", _SUM
)
NO_SIGNAL_FRAC = Quantity(
    "rollout/no_signal_frac",
    "share of sampled groups without a learning signal: all rewards are equal (with `per_reward`: the values "
    "of each named reward), or fewer than two completions have a reward",
)
ABSTAINED_FRAC = Quantity(
    "rollout/abstained_frac", "share of completions for which the reward function returned None"
)
TOKENS_PER_S = Quantity("rollout/tokens_per_s", "completion tokens sampled per second", "tokens/s")
STALENESS = Quantity(
    "rollout/staleness", "optimizer updates between sampling and the start of the step", "updates"
)
STALENESS_STEPS = Quantity(
    "rollout/staleness_steps", "training steps between sampling and the start of the step", "steps"
)
QUEUE_BATCHES = Quantity(
    "rollout/queue_batches", "batches in the queue at the start of the step, including its own", "batches"
)
NUM_GROUPS_DROPPED = Quantity(
    "rollout/num_groups_dropped", "groups dropped for being older than `rollout.lag` steps", "groups", _SUM
)
MIXED_WEIGHTS_FRAC = Quantity(
    "rollout/mixed_weights_frac", "share of completions during whose sampling the weights changed"
)

# The engine compared with the trainer, on the engine's own samples and at equal weights.
MISMATCH_MEAN = Quantity("mismatch/logprob_mean", "mean |engine - trainer| log-probability", "nats")
MISMATCH_MAX = Quantity("mismatch/logprob_max", "largest |engine - trainer| log-probability", "nats", _MAX)
MISMATCH_KL = Quantity("mismatch/kl", "k3 estimate of KL(engine || trainer) per token", "nats")

# The objective, over the tokens of all updates of the step. Groups that a method drops, skips or replaces are
# in none of these values, so entropy, shares and KL of such a method cover other tokens than those of a
# method that trains on all groups; `rollout/no_signal_frac` is the largest share of groups affected.
LOSS = Quantity("objective/loss", "loss of an update, averaged over the step's updates")
ENTROPY = Quantity("objective/entropy", "mean entropy of the policy per token", "nats")
RATIO_MEAN = Quantity("objective/ratio", "mean importance ratio per token, as used by the trust region")
RATIO_SQUARED = Quantity("objective/ratio_squared", "mean squared importance ratio per token")
RATIO_MAX = Quantity("objective/ratio_max", "largest importance ratio", reduction=_MAX)
RATIO_MIN = Quantity("objective/ratio_min", "smallest importance ratio", reduction=_MIN)
# Quantiles cannot be combined, so they are computed from the combined histogram of the step.
RATIO_QUANTILES = {
    share: Quantity(
        f"objective/ratio_p{100 * share:02.0f}", f"{100 * share:.0f} % of tokens have a smaller ratio"
    )
    for share in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
}
OUTSIDE_HIGH_FRAC = Quantity(
    "objective/outside_high_frac", "share of tokens outside the trust region with a ratio above 1"
)
OUTSIDE_LOW_FRAC = Quantity(
    "objective/outside_low_frac", "share of tokens outside the trust region with a ratio below 1"
)
CLIP_HIGH_FRAC = Quantity("objective/clip_high_frac", "share of tokens with A > 0 whose gradient is clipped")
CLIP_LOW_FRAC = Quantity("objective/clip_low_frac", "share of tokens with A < 0 clipped for a ratio below 1")
CLIP_RUNAWAY_FRAC = Quantity(
    "objective/clip_runaway_frac", "share of tokens with A < 0 clipped for a ratio above 1"
)
EFFECTIVE_SAMPLE_FRAC = Quantity(
    "objective/effective_sample_frac", "effective sample size per token, (mean w)^2 / mean w^2"
)
COEFFICIENT_ABS = Quantity("objective/coefficient_abs", "mean |coefficient| of log-probabilities in the loss")
SLOPE_SQUARED = Quantity(
    "objective/slope_squared_sum", "sum over tokens of (d loss / d log-probability)^2", reduction=_SUM
)
SLOPE_SQUARED_MAX = Quantity(
    "objective/slope_squared_max", "largest (d loss / d log-probability)^2 of a token", reduction=_MAX
)
HEAVIEST_TOKEN_FRAC = Quantity(
    "objective/heaviest_token_frac", "share of the largest term in `slope_squared_sum`"
)
RUNAWAY_SLOPE_FRAC = Quantity(
    "objective/runaway_slope_frac",
    "share of tokens with A < 0 and a ratio above the trust region in sum |d loss / d log-probability|",
)
KL_K1 = Quantity("objective/kl_k1", "k1 estimate of KL(behavior || policy) per token, -log w", "nats")
KL_K2 = Quantity("objective/kl_k2", "k2 estimate of KL(behavior || policy), (log w)^2 / 2, biased", "nats")
KL_K3 = Quantity("objective/kl_k3", "k3 estimate of KL(behavior || policy), w - 1 - log w, unbiased", "nats")
# The effect of staleness alone, measured on the minibatch of the step's first update before the update.
KL_BEFORE_UPDATE = Quantity(
    "objective/kl_before_update",
    "k3 estimate of KL(behavior || policy) per token before the step's first update, on its tokens",
    "nats",
)
OUTSIDE_BEFORE_UPDATE_FRAC = Quantity(
    "objective/outside_before_update_frac", "share of the first update's tokens outside the trust region"
)
KL_AFTER_UPDATE = Quantity(
    "objective/kl_after_update",
    "k3 estimate of KL(behavior || policy) per token after the last update, on every eighth completion",
    "nats",
)
REFERENCE_KL = Quantity("objective/reference_kl", "k3 estimate of KL(policy || reference) per token", "nats")
REGULARIZER = Quantity("objective/regularizer", "the KL penalty's part of the loss")
ADVANTAGE_ABS = Quantity("objective/advantage_abs", "mean |advantage| per token")
STATE_DIVERGENCE = Quantity(
    "objective/state_divergence", "mean divergence of whole next-token distributions, if it is bounded"
)
ENTROPY_COEFFICIENT = Quantity("objective/entropy_coefficient", "current coefficient of the entropy bonus")

# The optimizer.
GRAD_NORM = Quantity("optimizer/grad_norm", "gradient norm before clipping, per update")
GRAD_NORM_MAX = Quantity("optimizer/grad_norm_max", "largest gradient norm of the step", reduction=_MAX)
LEARNING_RATE = Quantity("optimizer/learning_rate", "current learning rate")
NUM_UPDATES = Quantity("optimizer/num_updates", "optimizer updates in the step", "updates", _SUM)
NUM_SKIPPED_UPDATES = Quantity(
    "optimizer/num_skipped_updates", "updates skipped because the gradient was not finite", "updates", _SUM
)
NUM_TRAINED_TOKENS = Quantity(
    "optimizer/num_trained_tokens", "completion tokens that entered an update", "tokens", _SUM
)
NUM_COMPUTED_POSITIONS = Quantity(
    "optimizer/num_computed_positions", "positions computed in updates, including padding", "tokens", _SUM
)
PADDING_FRAC = Quantity(
    "optimizer/padding_frac", "share of computed positions that are padding or repeated prompts"
)
TRAIN_TOKENS_PER_S = Quantity(
    "optimizer/tokens_per_s", "completion tokens trained on per second of update", "tokens/s"
)

# Time and memory per phase of a step.
ROLLOUT_S = Quantity("time/rollout_s", "sampling completions", "s", _SUM)
OVERLAP_S = Quantity("time/overlap_s", "sampling this batch during the previous update", "s", _SUM)
BATCH_WAIT_S = Quantity("time/batch_wait_s", "waiting for this batch after the previous update", "s", _SUM)
ENGINE_IDLE_S = Quantity("time/engine_idle_s", "mean time that servers were idle", "s", _SUM)
GRADE_WAIT_S = Quantity("time/grade_wait_s", "waiting for grades after sampling ended", "s", _SUM)
BEHAVIOR_S = Quantity(
    "time/behavior_s", "forward pass with the weights that sampled, if later weights are trained", "s", _SUM
)
SCORE_S = Quantity("time/score_s", "forward passes of anchor and reference, and advantages", "s", _SUM)
UPDATE_S = Quantity("time/update_s", "forward and backward passes, and the optimizer", "s", _SUM)
FORWARD_S = Quantity("time/forward_s", "forward pass and loss, a part of the update", "s", _SUM)
BACKWARD_S = Quantity("time/backward_s", "backward pass, a part of the update", "s", _SUM)
KL_S = Quantity("time/kl_s", "measuring the KL after the last update", "s", _SUM)
OPTIMIZER_S = Quantity("time/optimizer_s", "gradient clipping and optimizer step", "s", _SUM)
EVALUATE_S = Quantity("time/evaluate_s", "evaluation", "s", _SUM)
CHECKPOINT_S = Quantity("time/checkpoint_s", "recording the previous step and saving a checkpoint", "s", _SUM)
WEIGHTS_S = Quantity("time/weights_s", "sending new weights to the engine and the reference", "s", _SUM)
OTHER_S = Quantity("time/other_s", "time of the step that no phase accounts for", "s", _SUM)
STEP_S = Quantity("time/step_s", "the whole step", "s", _SUM)
IDLE_FRAC = Quantity("time/idle_frac", "share of the step that is spent on grading or in no phase")
MFU = Quantity("time/mfu_frac", "model FLOPs per second of the update over the device's dense peak rate")
PEAK_MEMORY_MB = Quantity("memory/peak_mb", "peak memory, resident (CPU) or allocated (CUDA)", "MB", _MAX)
ROLLOUT_PEAK_MB = Quantity("memory/rollout_peak_mb", "peak memory while sampling (CUDA)", "MB", _MAX)
UPDATE_PEAK_MB = Quantity("memory/update_peak_mb", "peak memory while updating (CUDA)", "MB", _MAX)
EVALUATE_PEAK_MB = Quantity("memory/evaluate_peak_mb", "peak memory while evaluating (CUDA)", "MB", _MAX)
NUM_PREEMPTED = Quantity(
    "memory/num_preempted", "samples that were preempted from vLLM's cache and restarted", "samples", _SUM
)

# Differences between the processes of a run; not recorded if there is only one process.
RANK_TOKENS_MIN = Quantity("ranks/tokens_min", "fewest completion tokens sampled by any rank", "tokens", _MIN)
RANK_TOKENS_MAX = Quantity("ranks/tokens_max", "most completion tokens sampled by any rank", "tokens", _MAX)
RANK_ROLLOUT_MIN_S = Quantity("time/rank_rollout_min_s", "sampling time of the fastest rank", "s", _MIN)
RANK_WAIT_MIN_S = Quantity("time/rank_wait_min_s", "waiting time of the rank that waits least", "s", _MIN)
RANK_WAIT_MAX_S = Quantity("time/rank_wait_max_s", "waiting time of the rank that waits most", "s", _MAX)
RANK_PEAK_MIN_MB = Quantity("memory/rank_peak_min_mb", "peak memory of the rank that uses least", "MB", _MIN)


CATALOGUE: dict[str, Quantity] = {
    quantity.name: quantity
    for declared in list(globals().values())
    for quantity in (declared.values() if declared is RATIO_QUANTILES else (declared,))
    if isinstance(quantity, Quantity)
}
TIME_STAGES = ("time/", "memory/")
"""Prefixes of quantities that may differ between identical runs, as may quantities ending in `_per_s`."""


_PART_REWARD, _PART_SHARE = f"{REWARD.name}/", f"{REWARD.name}_variance_share/"


def part_quantities(name: str) -> tuple[Quantity, Quantity]:
    """Return the declarations of two quantities of the named reward `name`.

    The first is the mean of the named reward. The second is its share of the total reward's variance.
    """
    return (
        Quantity(f"{_PART_REWARD}{name}", f"mean of the reward {name}, before weighting"),
        Quantity(
            f"{_PART_SHARE}{name}",
            f"share of the reward's variance within groups that is due to {name}: covariance of the weighted "
            f"{name} with the reward, over the reward's variance; all shares add up to 1",
        ),
    )


def quantity_of(name: str) -> Quantity | None:
    """Return the declaration of the quantity `name`, or None if the name is unknown.

    Quantities of the machine (`system/`) and of evaluations (`evaluation/`) count as unknown.
    """
    for place, prefix in enumerate((_PART_REWARD, _PART_SHARE)):
        if name.startswith(prefix):
            return part_quantities(name.removeprefix(prefix))[place]
    return CATALOGUE.get(name)


# The state of the machine over time, recorded in system.jsonl and not per step.
CPU_FRAC = Quantity("system/cpu_frac", "share of the time in which the machine's CPU cores are busy")
CPU_CORES = Quantity("system/cpu_cores", "CPU cores used by the run's first process and its descendants")
MEMORY_FRAC = Quantity("system/memory_frac", "share of the machine's memory in use")
MEMORY_MB = Quantity(
    "system/memory_mb", "resident memory of these processes; shared pages count once per process", "MB"
)
DISK_FREE_MB = Quantity("system/disk_free_mb", "free space on the disk of the run directory", "MB")
ENGINE_QUEUE = Quantity(
    "system/engine_queue", "samples that the engine has accepted and not finished", "samples"
)


def gpu_quantities(index: str) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    """Return the declarations of a GPU's utilization, memory, power and temperature.

    `index` is the GPU's NVML index.
    """
    gpu = f"system/gpu{index}"
    return (
        Quantity(f"{gpu}_frac", f"share of the time in which GPU {index} ran a kernel"),
        Quantity(f"{gpu}_memory_mb", f"memory of GPU {index} in use, by all processes", "MB"),
        Quantity(f"{gpu}_power_w", f"power of GPU {index}", "W"),
        Quantity(f"{gpu}_celsius", f"temperature of GPU {index}", "°C"),
    )


SYSTEM = (CPU_FRAC, CPU_CORES, MEMORY_FRAC, MEMORY_MB, DISK_FREE_MB, ENGINE_QUEUE)
"""The quantities of the machine, except those of its GPUs, which `gpu_quantities` returns."""


def part_means(names: Iterable[str]) -> dict[str, Quantity]:
    """Return the declarations of the metrics in `names` that are means of named rewards.

    The keys of the result are the names of the rewards.
    """
    found = [name.removeprefix(_PART_REWARD) for name in names if name.startswith(_PART_REWARD)]
    return {name: part_quantities(name)[0] for name in found}


def is_repeatable(name: str) -> bool:
    """Return whether the quantity is bitwise identical in runs with equal settings on the same machine.

    The answer is valid for quantities of training steps, but not for those of the machine (`system/`).
    """
    return not name.startswith(TIME_STAGES) and not name.endswith("_per_s")


def evaluation_name(benchmark: str, quantity: str) -> str:
    """Return the metric name of an evaluation's result, such as `evaluation/aime24/mean_at_8`."""
    return f"evaluation/{benchmark}/{quantity}"
