"""Time updates of a language model with random weights on natural lengths: tokens/s, MFU, peak memory.

The architecture is that of a file of conf/model. Completion lengths are heavy-tailed, each batch gets one
update, and several sizes of micro-batches are measured. The benchmark is meant for a GPU; on a CPU it only
shows that the program works.

The program prints one JSON line per micro-batch size; the first update warms up and is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pairs
import record
import updates

if TYPE_CHECKING:
    from atrium.engines.collate import RolloutRows
    from atrium.models.policy import Policy


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add(
        "--model",
        default="qwen3_1_7b",
        help="a file of conf/model with an architecture (default %(default)s)",
    )
    add("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="number format of the forward pass",
    )
    add("--micro-batch-tokens", type=int, nargs="+", default=[8192, 16384], help="sizes of micro-batches")
    add("--completions", type=int, default=128, help="completions in a batch (default %(default)s)")
    add("--group", type=int, default=8, help="completions per prompt (default %(default)s)")
    add("--median", type=int, default=700, help="median length of a completion (default %(default)s)")
    add("--longest", type=int, default=4096, help="maximum length of a completion (default %(default)s)")
    add("--repeats", type=int, default=5, help="updates per size (default %(default)s)")
    add("--recompute", action="store_true", help="recompute activations, even if they fit into memory")
    add("--compile", action="store_true", help="compile the blocks of the model")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the model, such as its sizes")
    add("--offload", action="store_true", help="keep AdamW and its state in main memory")
    add("--seed", type=int, default=0)
    return options


def fits(architecture: Mapping[str, Any], args: argparse.Namespace, size: int, num_tokens: int) -> bool:
    """Return whether an update with all its activations is predicted to fit into the GPU's memory."""
    import torch

    from atrium.base.records import Phase
    from atrium.models.shape import read_shape
    from atrium.planning.memory import TrainerDemand, peak_by_phase, plan_memory

    demand = TrainerDemand(
        compute_dtype=args.dtype,
        device="cuda",
        micro_batch_tokens=size,
        batch_tokens=num_tokens,
        offload=args.offload,
    )
    shape = read_shape(architecture)
    assert shape is not None
    peak = peak_by_phase(plan_memory(shape, demand))[Phase.UPDATE]
    return peak <= 0.9 * torch.cuda.get_device_properties(0).total_memory


def measure(args: argparse.Namespace, policy: Policy, rows: RolloutRows, size: int) -> None:
    """Time updates with micro-batches of `size` tokens, and print the record."""
    from atrium.base import metrics
    from atrium.train.guard.memory import PeakMemory

    num_tokens = int(rows.batch.mask_BT.sum())
    has_room = args.device == "cpu" or fits(architecture(args), args, size, num_tokens)
    recomputes = args.recompute or not has_room
    updater = updates.build_updater(
        policy.model,
        dtype=args.dtype,
        micro_batch_tokens=size,
        peak_flops=peak(args),
        recomputes=recomputes,
        offload=args.offload,
        compiles=args.compile,
    )
    measured: list[dict[str, float]] = []

    def work() -> None:
        measured.append(updates.run_update(updater, rows, len(measured) + 1))

    work()
    memory = PeakMemory(args.device)
    seconds = [pairs.seconds_of(work, args.device) for _ in range(args.repeats)]
    mfu = measured[-1].get(metrics.MFU.name)
    record.print_record(
        impl=record.versions("atrium-rl", "transformers", "torch"),
        model=args.model,
        params=policy.num_parameters,
        dtype=args.dtype,
        micro_batch_tokens=size,
        recompute_activations=recomputes,
        offload=args.offload,
        compile=args.compile,
        seconds_med=round(statistics.median(seconds), 4),
        tokens_per_s=round(num_tokens / statistics.median(seconds), 1),
        mfu_frac=None if mfu is None else round(mfu, 4),
        padding_frac=round(measured[-1][metrics.PADDING_FRAC.name], 4),
        peak_mb=round(memory.peak_mb(), 1),
        tokens=num_tokens,
        completions=args.completions,
        longest=int(rows.batch.mask_BT.sum(dim=1).max()),
        repeats=args.repeats,
        seed=args.seed,
        **record.machine(args.device),
    )


def architecture(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the architecture of `--model`, changed by `--set`."""
    from atrium.config.compose import compose

    return compose([f"model={args.model}", "model.weights=random", *args.set]).model.architecture


def peak(args: argparse.Namespace) -> float | None:
    """Return the GPU's peak rate in FLOP/s; None on a CPU."""
    import torch

    from atrium.planning.devices import peak_flops

    return None if args.device == "cpu" else peak_flops(torch.cuda.get_device_name(), args.dtype)


def main() -> None:
    """Measure all micro-batch sizes."""
    args = parser().parse_args()
    if args.device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from atrium.models.policy import build_random_policy
    from atrium.models.tiny import build_tokenizer

    if args.device == "cpu":
        torch.set_num_threads(1)
    policy = build_random_policy(
        architecture(args), tokenizer=build_tokenizer(), seed=args.seed, device=args.device
    )
    rows = updates.random_rows(
        updates.natural_lengths(args.completions, median=args.median, longest=args.longest, seed=args.seed),
        group_size=args.group,
        num_prompt_tokens=128,
        vocabulary=len(policy.tokenizer),
        pad_token_id=policy.pad_token_id,
        seed=args.seed,
        device=args.device,
    )
    for size in args.micro_batch_tokens:
        measure(args, policy, rows, size)


if __name__ == "__main__":
    main()
