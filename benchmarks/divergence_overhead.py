"""What a divergence costs: updates with each trust region against the same updates with plain clipping.

The model is the built-in one, whose forward and backward are so small that an objective's share is larger
than on any model in use; sampling and grading, which no divergence changes, are left out too, so the
shares printed here are upper bounds. Repeats are interleaved: each runs every arm once, in a turned order,
and arms are compared within repeats, in CPU seconds of the process. The interval is that of the median by
signs (order statistics), which assumes nothing about the noise.

One JSON line per arm: `overhead_frac` is the median over repeats of CPU seconds over those of clipping,
less 1.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import record

if TYPE_CHECKING:
    from atrium.models.policy import Policy
    from atrium.objective.regions import Divergence
    from atrium.rollout.collate import RolloutRows
    from atrium.train.step import PolicyUpdater

BASELINE = "ratio"
ARMS: dict[str, dict[str, float]] = {
    "ratio": {"delta": 0.2},
    "ratio_again": {"delta": 0.2},
    "kl3": {"delta": 0.02},
    "binary_total_variation": {"delta_low": 0.15, "delta_high": 0.15},
    "binary_kl": {"delta": 0.05},
    "dynamic_clip": {"epsilon_low": 0.16, "epsilon_high": 0.2, "cap": 10.0},
    "balanced_window": {
        "lower": 0.6,
        "upper": 1.2,
        "lower_max": 0.9,
        "upper_max": 3.0,
        "step": 0.05,
        "positive_frac": 0.5,
    },
    "state_kl": {"delta": 0.05},
    "top_k_kl": {"delta": 0.05, "top_k": 8},
}
"""Trust regions and their settings. `ratio_again` is clipping once more: what the measurement cannot see."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=40, help="paired repeats (default %(default)s)")
    add("--prompts", type=int, default=64, help="problems in a step (default %(default)s)")
    add("--group", type=int, default=8, help="completions of each (default %(default)s)")
    add(
        "--max-new-tokens",
        type=int,
        default=48,
        help="tokens of the longest completion (default %(default)s)",
    )
    add("--minibatches", type=int, default=4, help="updates of a step (default %(default)s)")
    add("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="which to run (default all)")
    add("--seed", type=int, default=0, help="of tokens, rewards and lengths (default %(default)s)")
    return options


def divergence_of(arm: str) -> Divergence:
    """The divergence of an arm."""
    from atrium.objective.divergences import DIVERGENCES

    settings: dict[str, Any] = {**ARMS[arm]}
    return DIVERGENCES[arm.removesuffix("_again")](**settings)


def random_rows(policy: Policy, args: argparse.Namespace) -> RolloutRows:
    """Completions of random tokens and lengths, with log-probabilities of a policy somewhat off."""
    import numpy as np

    from atrium.records import Completion, FinishReason, Problem, Rollout, RolloutGroup, Verdict, VerdictKind
    from atrium.rollout.collate import collate

    rng = np.random.default_rng(args.seed)
    verdict = Verdict(kind=VerdictKind.INCORRECT, reason="")
    vocabulary = len(policy.tokenizer)

    def rollout(place: int) -> Rollout:
        num_tokens = int(rng.integers(args.max_new_tokens // 4, args.max_new_tokens + 1))
        completion = Completion(
            token_ids=rng.integers(5, vocabulary, num_tokens).astype(np.int32),
            logprobs=np.zeros(num_tokens, dtype=np.float32),
            text="",
            finish_reason=FinishReason.LENGTH,
            weight_version=0,
        )
        reward = float(rng.random() < 0.5)
        return Rollout(sample_index=place, completion=completion, verdict=verdict, reward=reward)

    groups = [
        RolloutGroup(
            problem=Problem(problem_id=str(number), question="", answer=""),
            prompt_token_ids=rng.integers(5, vocabulary, 10).astype(np.int32),
            rollouts=tuple(rollout(place) for place in range(args.group)),
        )
        for number in range(args.prompts)
    ]
    trains = [True] * len(groups)
    return collate(groups, trains=trains, pad_token_id=policy.pad_token_id, seed=args.seed, device="cpu")


def with_behavior(rows: RolloutRows, updater: PolicyUpdater, seed: int) -> RolloutRows:
    """The rows, sampled by a policy that differs from the trained one by noise of 0.15 nats per token."""
    from dataclasses import replace

    import torch

    with torch.no_grad():
        logprob_BT = updater.forward(rows, entropy="none").logprob_BT
    noise_BT = torch.randn(logprob_BT.shape, generator=torch.Generator().manual_seed(seed))
    moved_BT = (logprob_BT + 0.15 * noise_BT).clamp(max=-1e-4)
    rollout_BT = torch.where(rows.batch.mask_BT, moved_BT, 0.0)
    return rows.with_batch(replace(rows.batch, rollout_logprob_BT=rollout_BT))


def build_updater(arm: str, policy: Policy, args: argparse.Namespace) -> PolicyUpdater:
    """GRPO's clip with that trust region, on a copy of the policy."""
    import copy

    from atrium.objective.advantages import Advantage
    from atrium.objective.divergences import StateDivergence
    from atrium.objective.objective import Objective
    from atrium.objective.ratios import Ratio
    from atrium.objective.reductions import TokenMean
    from atrium.objective.state_divergences import STATE_DIVERGENCES
    from atrium.objective.surrogates import Clip
    from atrium.train.divergence_meter import DivergenceMeter
    from atrium.train.logprobs import PolicyForward
    from atrium.train.optimizer import OptimizerSettings, PolicyOptimizer
    from atrium.train.step import PolicyUpdater, UpdateSettings

    model, divergence = copy.deepcopy(policy.model), divergence_of(arm)
    meter = None
    if isinstance(divergence, StateDivergence):
        meter = DivergenceMeter(STATE_DIVERGENCES[divergence.measure], divergence.top_k)
    return PolicyUpdater(
        objective=Objective(
            advantage=Advantage(baseline="group_mean", scale="group_std"),
            gate=Ratio(),
            weight=Ratio(),
            divergence=divergence,
            surrogate=Clip(),
            gradient="pathwise",
            reduction=TokenMean(),
        ),
        forward=PolicyForward(model, temperature=1.0, meter=meter),
        optimizer=PolicyOptimizer(
            model,
            OptimizerSettings(
                learning_rate=1e-6,  # every repeat meets nearly the same policy
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                weight_decay=0.0,
                num_warmup_steps=0,
                schedule="constant",
                max_grad_norm=1.0,
                num_steps=args.repeats + 1,
            ),
        ),
        settings=UpdateSettings(
            num_minibatches=args.minibatches,
            num_epochs=1,
            micro_batch_tokens=16384,
            behavior_logprobs="engine",
            seed=args.seed,
        ),
    )


def cpu_seconds(updater: PolicyUpdater, rows: RolloutRows, step: int) -> float:
    """CPU seconds of all updates of one step."""
    from atrium.train.measurements import Measurements

    measurements = Measurements()
    started = time.process_time()
    updater.step(rows, updater.objective.initial_state(), step=step, measurements=measurements, trace=False)
    measurements.values()
    return time.process_time() - started


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median by signs: the widest order statistics that binomial signs allow."""
    ordered, num = sorted(values), len(values)
    below, rank = 0.0, 0
    while (below := below + math.comb(num, rank) / 2**num) <= 0.025:
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[num - 1 - rank]


def main() -> None:
    """Run all arms in turns and print a record of each."""
    args = parser().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from atrium.models.tiny import TinySettings, build_tiny_policy

    torch.set_num_threads(1)
    policy = build_tiny_policy(TinySettings(), seed=args.seed)
    arms = [BASELINE, *(arm for arm in args.arms if arm != BASELINE)]
    updaters = {arm: build_updater(arm, policy, args) for arm in arms}
    rows = with_behavior(random_rows(policy, args), updaters[BASELINE], args.seed)
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for repeat in range(args.repeats + 1):
        turned = arms[repeat % len(arms) :] + arms[: repeat % len(arms)]
        for arm in turned:
            spent = cpu_seconds(updaters[arm], rows, repeat + 1)
            if repeat > 0:  # the first is a warm-up
                seconds[arm].append(spent)
    for arm in arms:
        overheads = [one / base - 1.0 for one, base in zip(seconds[arm], seconds[BASELINE], strict=True)]
        low, high = median_interval(overheads)
        record.print_record(
            impl=record.versions("atrium-rl", "torch"),
            arm=arm,
            cpu_s_med=round(statistics.median(seconds[arm]), 5),
            overhead_frac=round(statistics.median(overheads), 4),
            overhead_interval=[round(low, 4), round(high, 4)],
            repeats=args.repeats,
            completions=args.prompts * args.group,
            minibatches=args.minibatches,
            tokens=int(rows.num_completion_tokens_B.sum()),
            params=policy.num_parameters,
            **record.machine(),
        )


if __name__ == "__main__":
    main()
