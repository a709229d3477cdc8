"""Measure the overhead of each divergence: updates with its trust region against plain clipping.

The built-in model is used. It is so small that the objective takes a larger share of an update than with
any model in practice. Sampling and grading, which no divergence affects, are left out. The overheads are
therefore upper bounds. Repeats are paired and interleaved (see `pairs.py`).

The program prints one JSON line per arm. `overhead_frac` is the median over repeats of the ratio of CPU
seconds to those of plain clipping, minus 1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from typing import TYPE_CHECKING

import pairs
import record
import updates

if TYPE_CHECKING:
    from atrium.engines.collate import RolloutRows
    from atrium.method.divergences import Divergence
    from atrium.models.policy import Policy
    from atrium.train.update.updater import PolicyUpdater

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
"""Trust regions and their settings. `ratio_again` repeats plain clipping, which shows the noise level."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=40, help="paired repeats (default %(default)s)")
    add("--prompts", type=int, default=64, help="problems in a step (default %(default)s)")
    add("--group", type=int, default=8, help="completions per problem (default %(default)s)")
    add(
        "--max-new-tokens",
        type=int,
        default=48,
        help="maximum length of a completion (default %(default)s)",
    )
    add("--minibatches", type=int, default=4, help="updates per step (default %(default)s)")
    add("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="arms to run (default: all)")
    add(
        "--seed", type=int, default=0, help="random seed of tokens, rewards and lengths (default %(default)s)"
    )
    return options


def divergence_of(arm: str) -> Divergence:
    """Build the divergence of an arm."""
    from atrium.method.divergences import Divergence

    return Divergence.build(arm.removesuffix("_again"), **ARMS[arm])


def rows_of(policy: Policy, args: argparse.Namespace) -> RolloutRows:
    """Return completions with random tokens and lengths."""
    import numpy as np

    rng = np.random.default_rng(args.seed)
    return updates.random_rows(
        rng.integers(args.max_new_tokens // 4, args.max_new_tokens + 1, args.prompts * args.group).tolist(),
        group_size=args.group,
        num_prompt_tokens=10,
        vocabulary=len(policy.tokenizer),
        pad_token_id=policy.pad_token_id,
        seed=args.seed,
    )


def updater_of(arm: str, policy: Policy, args: argparse.Namespace) -> PolicyUpdater:
    """Build an updater of GRPO with the arm's trust region, on a copy of the policy."""
    import copy

    from atrium.train.update.divergence_meter import meter_of

    divergence = divergence_of(arm)
    return updates.build_updater(
        copy.deepcopy(policy.model),
        divergence=divergence,
        meter=meter_of(divergence),
        num_minibatches=args.minibatches,
        seed=args.seed,
    )


def main() -> None:
    """Run all arms in turns and print a record per arm."""
    args = parser().parse_args()
    updates.compute_as_runs_do()

    from atrium.models.settings import TinySettings
    from atrium.models.tiny import build_tiny_policy

    policy = build_tiny_policy(TinySettings(), seed=args.seed)
    arms = [BASELINE, *(arm for arm in args.arms if arm != BASELINE)]
    updaters = {arm: updater_of(arm, policy, args) for arm in arms}
    rows = updates.with_behavior(rows_of(policy, args), updaters[BASELINE], args.seed)
    steps = itertools.count(1)

    def timed(arm: str) -> float:
        return pairs.seconds_of(lambda: updates.run_update(updaters[arm], rows, next(steps)))

    seconds = pairs.in_turns(
        {arm: functools.partial(timed, arm) for arm in arms}, args.repeats, name="all divergences, repeat"
    )
    for arm in arms:
        found = pairs.ratio_of(seconds[arm], seconds[BASELINE])
        record.print_record(
            impl=record.versions("atrium-rl", "torch"),
            arm=arm,
            cpu_s_med=round(statistics.median(seconds[arm]), 5),
            overhead_frac=round(found["ratio"] - 1.0, 4),
            overhead_interval=[round(bound - 1.0, 4) for bound in found["interval"]],
            repeats=args.repeats,
            completions=args.prompts * args.group,
            minibatches=args.minibatches,
            tokens=int(rows.num_completion_tokens_B.sum()),
            params=policy.num_parameters,
            seed=args.seed,
            **record.machine(),
        )


if __name__ == "__main__":
    main()
