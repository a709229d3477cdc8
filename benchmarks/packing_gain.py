"""Measure the gain of packing: updates with heavy-tailed lengths, packed against padded, at equal settings.

Padded micro-batches contain rows of similar length, which minimizes padding. `unsorted_padding_frac` is the
share of padding if all rows of the batch were padded to the longest one.

The program prints one JSON line per model and arm. `ratio` is the arm's CPU time relative to `packed`, paired
by repeat.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pairs
import record
import updates

if TYPE_CHECKING:
    from atrium.engines.collate import RolloutRows


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=7, help="paired repeats (default %(default)s)")
    add("--models", nargs="+", default=["0p3m", "3m"], help="shapes of make_models.py (default 0p3m 3m)")
    add("--prompts", type=int, default=8, help="problems in a step (default %(default)s)")
    add("--group", type=int, default=8, help="completions per problem (default %(default)s)")
    add("--prompt-tokens", type=int, default=32, help="length of a prompt (default %(default)s)")
    add("--median", type=int, default=64, help="median length of a completion (default %(default)s)")
    add("--longest", type=int, default=448, help="maximum length of a completion (default %(default)s)")
    add("--micro-batch-tokens", type=int, default=4096, help="maximum tokens of a pass (default %(default)s)")
    add("--seed", type=int, default=0, help="random seed of tokens and lengths (default %(default)s)")
    return options


def measure(args: argparse.Namespace, name: str, rows: RolloutRows, lengths: Sequence[int]) -> None:
    """Run both arms in turns on a model, and print a record for each."""
    from atrium.base import metrics
    from make_models import SHAPES, build_model

    model = build_model(SHAPES[name]).eval()
    updaters = {
        arm: updates.build_updater(
            copy.deepcopy(model), packing=arm == "packed", micro_batch_tokens=args.micro_batch_tokens
        )
        for arm in ("packed", "padded")
    }
    moved = updates.with_behavior(rows, updaters["packed"], args.seed)
    steps, measured = itertools.count(1), {}

    def timed(arm: str) -> float:
        def work() -> None:
            measured[arm] = updates.run_update(updaters[arm], moved, next(steps))

        return pairs.seconds_of(work)

    arms = {arm: functools.partial(timed, arm) for arm in updaters}
    seconds = pairs.in_turns(arms, args.repeats, name=f"{name}, repeat")
    for arm in arms:
        record.print_record(
            impl=record.versions("atrium-rl", "transformers", "torch"),
            model=name,
            params=sum(parameter.numel() for parameter in model.parameters()),
            arm=arm,
            seconds_med=round(statistics.median(seconds[arm]), 5),
            **pairs.ratio_of(seconds[arm], seconds["packed"]),
            positions=int(measured[arm][metrics.NUM_COMPUTED_POSITIONS.name]),
            padding_frac=round(measured[arm][metrics.PADDING_FRAC.name], 4),
            unsorted_padding_frac=round(1.0 - sum(lengths) / (max(lengths) * len(lengths)), 4),
            completions=len(lengths),
            tokens=sum(lengths),
            prompt_tokens=args.prompt_tokens,
            longest=max(lengths),
            micro_batch_tokens=args.micro_batch_tokens,
            repeats=args.repeats,
            seed=args.seed,
            **record.machine(),
        )


def main() -> None:
    """Measure each model on the same rows."""
    args = parser().parse_args()
    updates.compute_as_runs_do()
    from make_models import VOCABULARY

    lengths = updates.natural_lengths(
        args.prompts * args.group, median=args.median, longest=args.longest, seed=args.seed
    )
    rows = updates.random_rows(
        lengths,
        group_size=args.group,
        num_prompt_tokens=args.prompt_tokens,
        vocabulary=len(VOCABULARY),
        pad_token_id=0,
        seed=args.seed,
    )
    for name in args.models:
        measure(args, name, rows, lengths)


if __name__ == "__main__":
    main()
