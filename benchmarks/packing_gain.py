"""What packing saves: updates on heavy-tailed lengths, packed against padded, at equal settings.

Padded micro-batches hold rows of similar length, which is the best that padding can do; `unsorted` says what
share of positions would be padding if each micro-batch took rows as they come, as most trainers do.

One JSON line per model and arm; ratios are paired, of padded to packed, in CPU seconds (wall-clock on a GPU).
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
    """The options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=7, help="paired repeats (default %(default)s)")
    add("--models", nargs="+", default=["0p3m", "3m"], help="shapes of make_models.py (default 0p3m 3m)")
    add("--prompts", type=int, default=8, help="problems in a step (default %(default)s)")
    add("--group", type=int, default=8, help="completions of each (default %(default)s)")
    add("--prompt-tokens", type=int, default=32, help="length of a prompt (default %(default)s)")
    add("--median", type=int, default=64, help="median length of a completion (default %(default)s)")
    add("--longest", type=int, default=448, help="longest completion (default %(default)s)")
    add("--micro-batch-tokens", type=int, default=4096, help="(default %(default)s)")
    add("--seed", type=int, default=0, help="of tokens and lengths (default %(default)s)")
    return options


def main() -> None:
    """Run both arms in turns on each model."""
    args = parser().parse_args()
    updates.compute_as_runs_do()
    import copy

    from atrium.base import metrics
    from make_models import SHAPES, VOCABULARY, build_model

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
        model = build_model(SHAPES[name]).eval()
        updaters = {
            arm: updates.build_updater(
                copy.deepcopy(model), packing=arm == "packed", micro_batch_tokens=args.micro_batch_tokens
            )
            for arm in ("packed", "padded")
        }
        moved = updates.with_behavior(rows, updaters["packed"], args.seed)
        steps, measured = itertools.count(1), {}

        def timed(arm: str, updaters=updaters, moved=moved, steps=steps, measured=measured) -> float:
            def work() -> None:
                measured[arm] = updates.run_update(updaters[arm], moved, next(steps))

            return pairs.seconds_of(work)

        arms = {arm: functools.partial(timed, arm) for arm in updaters}
        seconds = pairs.in_turns(arms, args.repeats, name=f"{name}, repeat")
        longest = max(lengths)
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
                unsorted_padding_frac=round(1.0 - sum(lengths) / (longest * len(lengths)), 4),
                completions=len(lengths),
                tokens=sum(lengths),
                prompt_tokens=args.prompt_tokens,
                longest=longest,
                micro_batch_tokens=args.micro_batch_tokens,
                repeats=args.repeats,
                seed=args.seed,
                **record.machine(),
            )


if __name__ == "__main__":
    main()
