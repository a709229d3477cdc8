"""`atrium memory`: what settings need of memory, by item and phase, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.assemble.memory import PROMPT_TOKENS, judge
from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser
from atrium.config.compose import compose
from atrium.config.machine import Machine, num_usable_cores
from atrium.config.schema import RunConfig
from atrium.planning.document import FittedPlan, memory_document
from atrium.planning.memory import peak_by_phase
from atrium.views.terminal import print_document, print_json, standard_output

_GB = 10**9
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

    num_bytes = device_bytes(config) if arguments.gpu_gb is None else arguments.gpu_gb * _GB
    found, plan = judge(config, exact_shape(config), arguments.prompt_tokens, num_bytes)
    if arguments.json:
        print_json(_record(found, plan))
    else:
        print_document(standard_output(), memory_document(plan, _notes(found)))
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


def _record(run: RunConfig, plan: FittedPlan) -> dict[str, object]:
    return {
        "items": [
            {
                "name": item.name,
                "bytes": item.num_bytes,
                "phases": [str(phase) for phase in item.phases],
                "lowered_by": item.lowered_by,
            }
            for item in plan.items
        ],
        "peak_bytes": {str(phase): num_bytes for phase, num_bytes in peak_by_phase(plan.items).items()},
        "device_bytes": plan.device_bytes,
        "fits_with": plan.changes,
        "micro_batch_tokens": run.compute.micro_batch_tokens,
        "recompute_activations": run.compute.recompute_activations,
    }


def _notes(run: RunConfig) -> list[str]:
    share = f"in each of {run.compute.world_size} processes " if run.compute.world_size > 1 else ""
    again = ["updates compute activations again (compute.recompute_activations)"]
    return [
        f"at most, {share}on {run.compute.device} in {run.compute.dtype} with micro-batches of "
        f"{run.compute.micro_batch_tokens} tokens; libraries and fragmentation come on top, so leave a "
        "tenth free",
        *(again if run.compute.recompute_activations else []),
    ]
