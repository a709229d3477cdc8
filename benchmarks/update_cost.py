"""Measure the cost per token of an update as the batch grows: forward, backward and optimizer.

Rows have equal lengths and different prompts, so that all batches have the same work per token. A cost per
token that depends on the batch size is therefore overhead of the program. The program prints one JSON line
per model and size; ratios are paired, relative to the largest size.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics

import pairs
import record
import updates


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=5, help="paired repeats (default %(default)s)")
    add("--models", nargs="+", default=["0p3m", "3m"], help="shapes of make_models.py (default 0p3m 3m)")
    add(
        "--sizes",
        type=int,
        nargs="+",
        default=[1024, 2048, 4096, 8192, 16384, 32768],
        help="tokens of an update",
    )
    add("--row-tokens", type=int, default=128, help="tokens per row (default %(default)s)")
    add("--micro-batch-tokens", type=int, default=4096, help="maximum tokens of a pass (default %(default)s)")
    add("--seed", type=int, default=0, help="random seed of the tokens (default %(default)s)")
    return options


def main() -> None:
    """Time all sizes in turns with each model, and print a record for each."""
    args = parser().parse_args()
    updates.compute_as_runs_do()

    from make_models import SHAPES, VOCABULARY, build_model

    num_prompt_tokens = 16
    for name in args.models:
        model = build_model(SHAPES[name]).eval()
        updater = updates.build_updater(model, micro_batch_tokens=args.micro_batch_tokens)
        batches = {
            size: updates.random_rows(
                [args.row_tokens - num_prompt_tokens] * (size // args.row_tokens),
                group_size=1,
                num_prompt_tokens=num_prompt_tokens,
                vocabulary=len(VOCABULARY),
                pad_token_id=0,
                seed=args.seed,
            )
            for size in args.sizes
        }
        steps = itertools.count(1)

        def timed(size: int, updater=updater, batches=batches, steps=steps) -> float:
            return pairs.seconds_of(lambda: updates.run_update(updater, batches[size], next(steps))) / size

        arms = {str(size): functools.partial(timed, size) for size in args.sizes}
        seconds = pairs.in_turns(arms, args.repeats, name=f"{name}, repeat")
        for size in args.sizes:
            record.print_record(
                impl=record.versions("atrium-rl", "transformers", "torch"),
                model=name,
                params=sum(parameter.numel() for parameter in model.parameters()),
                total_tokens=size,
                microseconds_per_token_med=round(1e6 * statistics.median(seconds[str(size)]), 3),
                **pairs.ratio_of(seconds[str(size)], seconds[str(max(args.sizes))]),
                row_tokens=args.row_tokens,
                micro_batch_tokens=args.micro_batch_tokens,
                repeats=args.repeats,
                seed=args.seed,
                **record.machine(),
            )


if __name__ == "__main__":
    main()
