"""Every quantity that a run records: its name, unit, meaning, and how values of it combine.

A name is `stage/quantity`. It is declared here once; trackers, figures and displays read this table.
A value travels as a sum and a count (or as an extreme), so accumulation over micro-batches, minibatches
and ranks is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """How two values of one quantity combine into one."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Quantity:
    """The declaration of one recorded quantity."""

    name: str
    reduction: Reduction
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A value of a quantity: `total` over `count` things. For extremes `total` is the extreme."""

    total: float
    count: float = 1.0
    reduction: Reduction = Reduction.MEAN

    @property
    def value(self) -> float | None:
        """The reduced value, or None where nothing was counted."""
        if self.count == 0:
            return None
        return self.total / self.count if self.reduction is Reduction.MEAN else self.total

    def merge(self, other: Metric) -> Metric:
        """Combine with another value of the same quantity; a value that counts nothing is neutral."""
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


_MEAN, _SUM, _MAX, _MIN = Reduction.MEAN, Reduction.SUM, Reduction.MAX, Reduction.MIN

# Rollouts: what was sampled and how it was graded.
REWARD = Quantity("rollout/reward", _MEAN, "", "mean reward of the sampled completions")
CORRECT_FRAC = Quantity("rollout/correct_frac", _MEAN, "", "share of completions graded correct")
INCORRECT_FRAC = Quantity("rollout/incorrect_frac", _MEAN, "", "share graded incorrect")
NO_ANSWER_FRAC = Quantity("rollout/no_answer_frac", _MEAN, "", "share without a boxed answer")
TIMED_OUT_FRAC = Quantity("rollout/timed_out_frac", _MEAN, "", "share the grader gave up on in time")
CRASHED_FRAC = Quantity("rollout/crashed_frac", _MEAN, "", "share on which the grader failed")
WORKED_FRAC = Quantity(
    "rollout/worked_frac",
    _MEAN,
    "",
    "probability, as the step begins, that an answer starts with work instead of at once with its box",
)
LENGTH_MEAN = Quantity("rollout/completion_length", _MEAN, "tokens", "mean completion length")
LENGTH_MAX = Quantity("rollout/completion_length_max", _MAX, "tokens", "longest completion")
TRUNCATED_FRAC = Quantity("rollout/truncated_frac", _MEAN, "", "share cut off by the length limit")
NUM_TOKENS = Quantity("rollout/num_tokens", _SUM, "tokens", "completion tokens sampled in the step")
NUM_GROUPS_SAMPLED = Quantity(
    "rollout/num_groups_sampled", _SUM, "groups", "groups sampled, those filtered out included"
)
NO_SIGNAL_FRAC = Quantity(
    "rollout/no_signal_frac",
    _MEAN,
    "",
    "share of sampled groups whose rewards are all equal, or of which abstentions leave fewer than two",
)
ABSTAINED_FRAC = Quantity(
    "rollout/abstained_frac", _MEAN, "", "share of completions for which the reward abstained (None)"
)
TOKENS_PER_S = Quantity("rollout/tokens_per_s", _MEAN, "tokens/s", "completion tokens sampled per s")
STALENESS = Quantity(
    "rollout/staleness", _MEAN, "updates", "optimiser updates between sampling and the step's start"
)
STALENESS_STEPS = Quantity(
    "rollout/staleness_steps", _MEAN, "steps", "training steps between sampling and the step's start"
)
QUEUE_BATCHES = Quantity(
    "rollout/queue_batches",
    _MEAN,
    "batches",
    "batches sampled ahead that wait as the step begins, its own too",
)
NUM_GROUPS_DROPPED = Quantity(
    "rollout/num_groups_dropped",
    _SUM,
    "groups",
    "finished groups that were older than `rollout.lag` steps",
)
MIXED_WEIGHTS_FRAC = Quantity(
    "rollout/mixed_weights_frac", _MEAN, "", "share of completions in whose middle the weights changed"
)

# The engine against the trainer, on the engine's own samples and at equal weights.
MISMATCH_MEAN = Quantity("mismatch/logprob_mean", _MEAN, "nats", "mean |engine - trainer| logprob")
MISMATCH_MAX = Quantity("mismatch/logprob_max", _MAX, "nats", "largest |engine - trainer| logprob")
MISMATCH_KL = Quantity("mismatch/kl", _MEAN, "nats", "KL(engine || trainer) per token, by k3")

# The objective, over the tokens of all updates of the step. Groups that a method drops, skips or replaces are
# in none of these, so entropy, shares and KL of such a method cover other tokens than those of one that
# trains on all groups; `rollout/no_signal_frac` says how many groups that may be.
LOSS = Quantity("objective/loss", _MEAN, "", "the loss of one update, averaged over updates")
ENTROPY = Quantity("objective/entropy", _MEAN, "nats", "mean entropy of the policy per token")
RATIO_MEAN = Quantity("objective/ratio", _MEAN, "", "mean gate ratio per token")
RATIO_SQUARED = Quantity("objective/ratio_squared", _MEAN, "", "mean squared gate ratio per token")
RATIO_MAX = Quantity("objective/ratio_max", _MAX, "", "largest gate ratio")
RATIO_MIN = Quantity("objective/ratio_min", _MIN, "", "smallest gate ratio")
# Quantiles do not combine: they are read off the step's histogram, whose counts do.
RATIO_P01 = Quantity("objective/ratio_p01", _MEAN, "", "1 % of tokens have a smaller gate ratio")
RATIO_P05 = Quantity("objective/ratio_p05", _MEAN, "", "5 % of tokens have a smaller gate ratio")
RATIO_P25 = Quantity("objective/ratio_p25", _MEAN, "", "25 % of tokens have a smaller gate ratio")
RATIO_P50 = Quantity("objective/ratio_p50", _MEAN, "", "half of the tokens have a smaller gate ratio")
RATIO_P75 = Quantity("objective/ratio_p75", _MEAN, "", "75 % of tokens have a smaller gate ratio")
RATIO_P95 = Quantity("objective/ratio_p95", _MEAN, "", "95 % of tokens have a smaller gate ratio")
RATIO_P99 = Quantity("objective/ratio_p99", _MEAN, "", "99 % of tokens have a smaller gate ratio")
RATIO_QUANTILES: dict[float, Quantity] = {
    0.01: RATIO_P01,
    0.05: RATIO_P05,
    0.25: RATIO_P25,
    0.5: RATIO_P50,
    0.75: RATIO_P75,
    0.95: RATIO_P95,
    0.99: RATIO_P99,
}
OUTSIDE_HIGH_FRAC = Quantity(
    "objective/outside_high_frac", _MEAN, "", "share of tokens infeasible with a ratio above 1"
)
OUTSIDE_LOW_FRAC = Quantity(
    "objective/outside_low_frac", _MEAN, "", "share of tokens infeasible with a ratio below 1"
)
CLIP_HIGH_FRAC = Quantity(
    "objective/clip_high_frac", _MEAN, "", "share of tokens with A > 0 whose gradient is cut"
)
CLIP_LOW_FRAC = Quantity(
    "objective/clip_low_frac", _MEAN, "", "share of tokens with A < 0 cut for a ratio below 1"
)
CLIP_RUNAWAY_FRAC = Quantity(
    "objective/clip_runaway_frac", _MEAN, "", "share of tokens with A < 0 cut for a ratio above 1"
)
EFFECTIVE_SAMPLE_FRAC = Quantity(
    "objective/effective_sample_frac", _MEAN, "", "(mean w)^2 / mean w^2 of the gate ratio"
)
COEFFICIENT_ABS = Quantity(
    "objective/coefficient_abs", _MEAN, "", "mean |coefficient| on a token's log-probability"
)
SLOPE_SQUARED = Quantity(
    "objective/slope_squared_sum", _SUM, "", "sum of squared slopes of the loss by log-probabilities"
)
SLOPE_SQUARED_MAX = Quantity("objective/slope_squared_max", _MAX, "", "the largest of those squares")
HEAVIEST_TOKEN_FRAC = Quantity(
    "objective/heaviest_token_frac", _MEAN, "", "the heaviest token's share of that sum, over the step"
)
RUNAWAY_SLOPE_FRAC = Quantity(
    "objective/runaway_slope_frac",
    _MEAN,
    "",
    "share of the sum of |slope| on tokens with A < 0 and a ratio above the window, which a clip keeps",
)
KL_K1 = Quantity("objective/kl_k1", _MEAN, "nats", "KL(behavior || policy) per token by k1 = -log w")
KL_K2 = Quantity("objective/kl_k2", _MEAN, "nats", "the same by k2 = (log w)^2 / 2, biased")
KL_K3 = Quantity("objective/kl_k3", _MEAN, "nats", "the same by k3 = w - 1 - log w, unbiased")
# What staleness alone does: on the minibatch of the step's first update, which no weight has moved for yet.
KL_BEFORE_UPDATE = Quantity(
    "objective/kl_before_update",
    _MEAN,
    "nats",
    "KL(sampling policy || policy before the step's first update) per token by k3, on that update's tokens",
)
OUTSIDE_BEFORE_UPDATE_FRAC = Quantity(
    "objective/outside_before_update_frac", _MEAN, "", "share of those tokens that are infeasible already"
)
KL_AFTER_UPDATE = Quantity(
    "objective/kl_after_update",
    _MEAN,
    "nats",
    "KL(sampling policy || policy after the step's last update) per token by k3, on every eighth completion",
)
REFERENCE_KL = Quantity("objective/reference_kl", _MEAN, "nats", "KL(policy || reference) per token, by k3")
REGULARIZER = Quantity("objective/regularizer", _MEAN, "", "the KL penalty's part of that loss")
ADVANTAGE_ABS = Quantity("objective/advantage_abs", _MEAN, "", "mean |advantage| per token")
STATE_DIVERGENCE = Quantity(
    "objective/state_divergence", _MEAN, "", "mean state divergence, where the objective uses one"
)
ENTROPY_COEFFICIENT = Quantity(
    "objective/entropy_coefficient", _MEAN, "", "the entropy bonus's coefficient in force"
)

# The optimiser.
GRAD_NORM = Quantity("optimizer/grad_norm", _MEAN, "", "gradient norm before clipping, per update")
GRAD_NORM_MAX = Quantity("optimizer/grad_norm_max", _MAX, "", "largest gradient norm of the step")
LEARNING_RATE = Quantity("optimizer/learning_rate", _MEAN, "", "learning rate in force")
NUM_UPDATES = Quantity("optimizer/num_updates", _SUM, "updates", "optimiser updates in the step")
NUM_SKIPPED_UPDATES = Quantity(
    "optimizer/num_skipped_updates", _SUM, "updates", "updates skipped for a gradient that is not finite"
)
NUM_TRAINED_TOKENS = Quantity(
    "optimizer/num_trained_tokens", _SUM, "tokens", "completion tokens that entered an update"
)
NUM_COMPUTED_POSITIONS = Quantity(
    "optimizer/num_computed_positions", _SUM, "tokens", "positions computed in updates, padding included"
)
PADDING_FRAC = Quantity(
    "optimizer/padding_frac", _MEAN, "", "share of those positions that is padding or a prompt again"
)
TRAIN_TOKENS_PER_S = Quantity(
    "optimizer/tokens_per_s", _MEAN, "tokens/s", "completion tokens trained on per second of update"
)

# Time and memory per phase of a step.
ROLLOUT_S = Quantity("time/rollout_s", _SUM, "s", "sampling completions")
OVERLAP_S = Quantity("time/overlap_s", _SUM, "s", "sampling this batch beside the update before it")
BATCH_WAIT_S = Quantity("time/batch_wait_s", _SUM, "s", "waiting for this batch when that update was over")
ENGINE_IDLE_S = Quantity("time/engine_idle_s", _SUM, "s", "mean time that servers were idle")
GRADE_WAIT_S = Quantity("time/grade_wait_s", _SUM, "s", "waiting for grades after sampling ended")
BEHAVIOR_S = Quantity(
    "time/behavior_s",
    _SUM,
    "s",
    "the trainer's pass by the weights that sampled, where later ones are trained",
)
SCORE_S = Quantity("time/score_s", _SUM, "s", "anchor, reference and advantage passes")
UPDATE_S = Quantity("time/update_s", _SUM, "s", "forward, backward and optimiser")
FORWARD_S = Quantity("time/forward_s", _SUM, "s", "forward and loss, part of the update")
BACKWARD_S = Quantity("time/backward_s", _SUM, "s", "backward, part of the update")
KL_S = Quantity("time/kl_s", _SUM, "s", "the pass that measures the KL after the last update")
OPTIMIZER_S = Quantity("time/optimizer_s", _SUM, "s", "gradient clipping and optimiser step")
EVALUATE_S = Quantity("time/evaluate_s", _SUM, "s", "evaluation")
CHECKPOINT_S = Quantity("time/checkpoint_s", _SUM, "s", "recording the step before and saving it")
WEIGHTS_S = Quantity("time/weights_s", _SUM, "s", "handing new weights to the engine and the reference")
OTHER_S = Quantity("time/other_s", _SUM, "s", "what of the step no phase accounts for")
STEP_S = Quantity("time/step_s", _SUM, "s", "the whole step")
IDLE_FRAC = Quantity("time/idle_frac", _MEAN, "", "share of the step spent on grades or in no phase")
MFU = Quantity("time/mfu_frac", _MEAN, "", "model FLOPs of the update over the device's dense peak")
PEAK_MEMORY_MB = Quantity("memory/peak_mb", _MAX, "MB", "peak resident (CPU) or allocated (CUDA)")
ROLLOUT_PEAK_MB = Quantity("memory/rollout_peak_mb", _MAX, "MB", "peak allocated while sampling (CUDA)")
UPDATE_PEAK_MB = Quantity("memory/update_peak_mb", _MAX, "MB", "peak allocated while updating (CUDA)")
EVALUATE_PEAK_MB = Quantity("memory/evaluate_peak_mb", _MAX, "MB", "peak allocated while evaluating (CUDA)")
NUM_PREEMPTED = Quantity(
    "memory/num_preempted", _SUM, "samples", "samples that lost their place in vLLM's cache and began again"
)

# How the processes that share a run differ; not recorded for a single one.
RANK_TOKENS_MIN = Quantity("ranks/tokens_min", _MIN, "tokens", "fewest completion tokens sampled by a rank")
RANK_TOKENS_MAX = Quantity("ranks/tokens_max", _MAX, "tokens", "most completion tokens sampled by a rank")
RANK_ROLLOUT_MIN_S = Quantity("time/rank_rollout_min_s", _MIN, "s", "sampling, of the fastest rank")
RANK_WAIT_MIN_S = Quantity("time/rank_wait_min_s", _MIN, "s", "waiting for others, of the busiest rank")
RANK_WAIT_MAX_S = Quantity("time/rank_wait_max_s", _MAX, "s", "waiting for others, of the idlest rank")
RANK_PEAK_MIN_MB = Quantity("memory/rank_peak_min_mb", _MIN, "MB", "peak_mb of the rank that needs least")


def _catalogue() -> dict[str, Quantity]:
    declared = [value for value in globals().values() if isinstance(value, Quantity)]
    return {quantity.name: quantity for quantity in declared}


CATALOGUE: dict[str, Quantity] = _catalogue()
TIME_STAGES = ("time/", "memory/")
"""Prefixes of quantities that two identical runs need not share; so do names ending in `_per_s`."""


def is_repeatable(name: str) -> bool:
    """Whether two runs with equal settings on one machine must agree on the quantity bit for bit."""
    return not name.startswith(TIME_STAGES) and not name.endswith("_per_s")


def evaluation_name(benchmark: str, quantity: str) -> str:
    """The name under which an evaluation's result is logged, e.g. `evaluation/aime24/mean_at_8`."""
    return f"evaluation/{benchmark}/{quantity}"
