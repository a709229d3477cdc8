"""`atrium memory`: what settings need of memory, by item and phase, before anything is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from atrium.cli.number_table import print_table
from atrium.cli.runs_command import CommandParser, standard_output
from atrium.config.compose import compose
from atrium.config.schema import RunConfig
from atrium.errors import ConfigError
from atrium.train.memory_plan import MemoryItem, Phase, peak_by_phase

_PROMPT_TOKENS = 256
_EXAMPLES = """\
examples:
  atrium memory                                              the built-in model
  atrium memory model=qwen3_1_7b compute.dtype=bfloat16      a model file: nothing is downloaded
  atrium memory model=qwen3_8b compute.num_processes=8       of one of 8 processes that share the policy
  atrium memory model=qwen3_1_7b compute.micro_batch_tokens=8192 rollout.max_new_tokens=4096
"""


def main(argv: Sequence[str]) -> int:
    """Print the plan for the overrides, or raise `ConfigError`."""
    parser = CommandParser(
        "memory",
        "Predict the memory of a run from its settings, by phase, before anything is loaded.\n"
        "Overrides are those of `atrium train`.",
        _EXAMPLES,
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="settings, as for `atrium train`")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=_PROMPT_TOKENS,
        metavar="N",
        help=f"length of a prompt, which only the data knows (default: {_PROMPT_TOKENS})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, in bytes, instead of a table")
    if (arguments := parser.parse(list(argv))) is None:
        return 0
    if arguments.prompt_tokens < 1:
        raise ConfigError(f"--prompt-tokens {arguments.prompt_tokens}: allowed is a number of at least 1")
    config = compose(arguments.overrides)
    # Only now: it loads torch, and most mistakes have been found without it.
    from atrium.assemble.memory import gpu_bytes, needs_recomputation, planned_memory

    num_tokens, there_is = arguments.prompt_tokens, gpu_bytes(config.compute.device)
    recomputes = needs_recomputation(config, num_prompt_tokens=num_tokens, device_bytes=there_is)
    compute = config.compute.model_copy(update={"recompute_activations": recomputes})
    settled = config.model_copy(update={"compute": compute})
    items = planned_memory(settled, num_prompt_tokens=num_tokens, device_bytes=there_is)
    if arguments.json:
        record = {**_record(items), "recompute_activations": recomputes}
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        _print(items, config, standard_output(), recomputes=recomputes)
    return 0


def _record(items: tuple[MemoryItem, ...]) -> dict[str, object]:
    return {
        "items": [
            {
                "name": item.name,
                "bytes": item.num_bytes,
                "phases": [str(phase) for phase in item.phases],
                "lowered_by": item.lowered_by,
            }
            for item in items
        ],
        "peak_bytes": {str(phase): num_bytes for phase, num_bytes in peak_by_phase(items).items()},
    }


def _print(items: tuple[MemoryItem, ...], config: RunConfig, console: Console, *, recomputes: bool) -> None:
    titles = ("memory", *(str(phase) for phase in Phase), "what lowers it")
    rows = [
        [
            item.name,
            *(_size(item.num_bytes) if phase in item.phases else "" for phase in Phase),
            item.lowered_by,
        ]
        for item in items
    ]
    peaks = peak_by_phase(items)
    print_table(
        console,
        titles,
        [*rows, ["together", *(_size(peaks[phase]) for phase in Phase), ""]],
        dropped_first=("what lowers it",),
    )
    compute = config.compute
    share = f"in each of {compute.world_size} processes " if compute.world_size > 1 else ""
    note = (
        f"at most, {share}on {compute.device} in {compute.dtype} with micro-batches of "
        f"{compute.max_micro_batch_tokens} tokens; libraries and fragmentation come on top, so leave a "
        "tenth free"
    )
    console.print(Text(note, "dim"), soft_wrap=True)
    if recomputes:
        console.print(Text("updates compute activations again (compute.recompute_activations)", "dim"))
    elif compute.recompute_activations == "auto":
        console.print(
            Text("activations are shown as kept; auto computes them again where memory lacks", "dim"),
            soft_wrap=True,
        )


def _size(num_bytes: int) -> str:
    if num_bytes < 10 * 2**20:
        return f"{num_bytes / 2**10:,.0f} KiB"
    return f"{num_bytes / 2**20:,.0f} MiB" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:,.1f} GiB"
