"""`atrium memory`: what settings need of memory, by item and phase, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from atrium.assemble.fitting import changed, fitting_changes
from atrium.assemble.memory import PROMPT_TOKENS, USABLE_FRAC, needs_recomputation, planned_memory
from atrium.base.errors import ConfigError
from atrium.base.records import MemoryItem, Phase
from atrium.cli.parser import CommandParser
from atrium.config.compose import compose
from atrium.config.machine import Machine, num_usable_cores
from atrium.config.schema import RunConfig
from atrium.models.shape import ModelShape
from atrium.planning.memory import peak_by_phase
from atrium.views.terminal import print_json, print_numbers, standard_output, tell

_GB = 1e9
_EXAMPLES = """\
examples:
  atrium memory                                              the built-in model
  atrium memory model=qwen3_1_7b                             a model file: nothing is downloaded
  atrium memory model=qwen3_1_7b --gpu-gb 80                 on a GPU of 80 GB with vLLM, not on this machine
  atrium memory model=qwen3_8b compute.num_processes=8       of one of 8 processes that share the policy
  atrium memory model=qwen3_1_7b compute.micro_batch_tokens=8192 rollout.max_new_tokens=4096
"""


def main(argv: Sequence[str]) -> int:
    """Print the plan for the overrides, or raise `ConfigError`."""
    arguments = _parser().parse(argv)
    for flag, given in (("--prompt-tokens", arguments.prompt_tokens), ("--gpu-gb", arguments.gpu_gb)):
        if given is not None and given < 1:
            raise ConfigError(f"{flag} {given}: allowed is a number of at least 1")
    pretended = Machine(
        num_cores=num_usable_cores(), requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1
    )
    config = compose(arguments.overrides, machine=None if arguments.gpu_gb is None else pretended)
    # Only now: they load numpy and torch, and most mistakes have been found without them.
    from atrium.assemble.checks import device_bytes
    from atrium.assemble.shapes import exact_shape

    num_bytes = device_bytes(config) if arguments.gpu_gb is None else arguments.gpu_gb * int(_GB)
    judged = judge(config, exact_shape(config), arguments.prompt_tokens, num_bytes)
    if arguments.json:
        print_json(_record(judged))
    else:
        _print(judged, standard_output())
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "memory",
        "Predict the memory of a run from its settings, by phase, before anything is loaded.\n"
        "Overrides are those of `atrium train`.",
        _EXAMPLES,
    )
    parser.add_overrides()
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=PROMPT_TOKENS,
        metavar="N",
        help=f"length of a prompt, which only the data knows (default: {PROMPT_TOKENS})",
    )
    parser.add_argument(
        "--gpu-gb",
        type=int,
        metavar="N",
        help="plan for a machine with vLLM and a GPU of N GB (10^9 bytes) instead of this one",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, in bytes, instead of a table")
    return parser


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A plan, without `auto`; the memory that there is, or None; and what would make the run fit it."""

    config: RunConfig
    items: tuple[MemoryItem, ...]
    device_bytes: int | None
    changes: tuple[str, ...] | None

    @property
    def largest(self) -> tuple[Phase, int]:
        """The phase that needs most, and its bytes."""
        return max(peak_by_phase(self.items).items(), key=lambda peak: peak[1])


def judge(config: RunConfig, shape: ModelShape, num_tokens: int, num_bytes: int | None) -> Judged:
    """The plan of a run for prompts of `num_tokens`; raises `ConfigError` where the engine cannot hold it."""
    of_gpu = num_bytes if config.compute.device == "cuda" else None

    room = math.inf if num_bytes is None else USABLE_FRAC * num_bytes

    def plan(run: RunConfig) -> tuple[MemoryItem, ...]:
        return planned_memory(run, shape, num_prompt_tokens=num_tokens, device_bytes=of_gpu)

    def settled(run: RunConfig) -> RunConfig:
        """What `auto` comes to: tokens of micro-batches are found by trying, here by planning."""
        compute = run.compute
        run.rollout.check_model(shape, compute.device)
        run.rollout.check_cache(shape, compute.dtype, of_gpu)
        recomputes = needs_recomputation(run, shape, num_prompt_tokens=num_tokens, device_bytes=of_gpu)
        run = changed(run, compute={"recompute_activations": recomputes})
        tokens, row = compute.max_micro_batch_tokens, num_tokens + run.rollout.max_new_tokens
        while compute.micro_batch_tokens == "auto":
            run = changed(run, compute={"micro_batch_tokens": tokens})
            if tokens <= row or max(peak_by_phase(plan(run)).values()) <= room:
                break
            tokens = max(row, tokens // 2)
        return run

    found = settled(config)
    return Judged(
        config=found,
        items=plan(found),
        device_bytes=num_bytes,
        changes=None if num_bytes is None else fitting_changes(config, lambda run: plan(settled(run)), room),
    )


def _record(judged: Judged) -> dict[str, object]:
    return {
        "items": [
            {
                "name": item.name,
                "bytes": item.num_bytes,
                "phases": [str(phase) for phase in item.phases],
                "lowered_by": item.lowered_by,
            }
            for item in judged.items
        ],
        "peak_bytes": {str(phase): num_bytes for phase, num_bytes in peak_by_phase(judged.items).items()},
        "device_bytes": judged.device_bytes,
        "fits_with": judged.changes,
        "micro_batch_tokens": judged.config.compute.micro_batch_tokens,
        "recompute_activations": judged.config.compute.recompute_activations,
    }


def _print(judged: Judged, console: Console) -> None:
    titles = ("memory", *(str(phase) for phase in Phase), "what lowers it")
    rows = [
        [
            item.name,
            *(_size(item.num_bytes) if phase in item.phases else "" for phase in Phase),
            item.lowered_by,
        ]
        for item in judged.items
    ]
    peaks = peak_by_phase(judged.items)
    print_numbers(
        console,
        titles,
        [*rows, ["together", *(_size(peaks[phase]) for phase in Phase), ""]],
        dropped_first=("what lowers it", str(Phase.START), str(Phase.SAVING)),
    )
    compute = judged.config.compute
    share = f"in each of {compute.world_size} processes " if compute.world_size > 1 else ""
    notes = [
        f"at most, {share}on {compute.device} in {compute.dtype} with micro-batches of "
        f"{compute.micro_batch_tokens} tokens; libraries and fragmentation come on top, so leave a "
        "tenth free"
    ]
    if compute.recompute_activations:
        notes.append("updates compute activations again (compute.recompute_activations)")
    for note in notes:
        tell(console, note, "dim")
    if judged.device_bytes is not None:
        tell(console, verdict(judged, judged.device_bytes))


def verdict(judged: Judged, num_bytes: int) -> str:
    """Whether the run fits what there is, and with which settings it would."""
    where = "main memory" if judged.config.compute.device == "cpu" else "GPU memory"
    there_is = f"{num_bytes / _GB:.1f} GB of {where}"
    if judged.changes == ():
        return f"it fits {there_is}"
    phase, needed = judged.largest
    text = f"it does not fit {there_is}: {phase} takes {needed / _GB:.1f} GB"
    if judged.changes is None:
        return f"{text}; no setting known here makes it fit, a smaller model or more memory does"
    return f"{text}; it fits with {' '.join(judged.changes)}"


def _size(num_bytes: int) -> str:
    if num_bytes < 10 * 2**20:
        return f"{num_bytes / 2**10:,.0f} KiB"
    return f"{num_bytes / 2**20:,.0f} MiB" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:,.1f} GiB"
