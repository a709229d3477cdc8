"""`atrium memory`: predict the time that a run takes, and its memory by item and phase."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.assemble.memory import PROMPT_TOKENS, judge, plan_notes, plan_record
from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, whole
from atrium.config.compose import compose
from atrium.config.machine import machine_with_gpu
from atrium.planning.devices import GPUS, find_gpu
from atrium.planning.document import memory_document
from atrium.views.terminal import print_document, print_json, standard_output

_GB = 10**9
_EXAMPLES = """\
examples:
  atrium memory                                              the built-in model
  atrium memory model=qwen3_1_7b                             a model file: nothing is downloaded
  atrium memory model=qwen3_1_7b --gpu H100                  a machine with an H100 and vLLM
  atrium memory model=qwen3_8b compute.num_processes=8       one of 8 processes that share the policy
  atrium memory model=qwen3_1_7b compute.micro_batch_tokens=8192 rollout.max_new_tokens=4096
"""


def main(argv: Sequence[str]) -> int:
    """Print the predicted memory and time of a run; raise `ConfigError` for invalid overrides."""
    arguments = _parser().parse(argv)
    gigabytes, gpu_name = arguments.gpu_gb, arguments.gpu
    if gpu_name is not None:
        if (gpu := find_gpu(gpu_name)) is None:
            raise ConfigError(f"--gpu {gpu_name}: unknown GPU; use one of {', '.join(GPUS)}, or --gpu-gb N")
        gigabytes = gpu.gigabytes
    config = compose(arguments.overrides, machine=None if gigabytes is None else machine_with_gpu())
    # These modules import numpy and torch; import them after the checks of the settings.
    from atrium.assemble.checks import device_bytes, gpu_of
    from atrium.assemble.choosing import with_split_of
    from atrium.assemble.duration import seconds_record, time_lines
    from atrium.assemble.shapes import exact_shape
    from atrium.planning.duration import planned_run

    num_bytes = device_bytes(config) if gigabytes is None else gigabytes * _GB
    if gigabytes is None:
        gpu_name = gpu_of(config)
    shape, num_tokens = exact_shape(config), arguments.prompt_tokens
    config = with_split_of(config, arguments.overrides, shape, gpu_name or "", num_bytes)
    found, plan = judge(config, shape, num_tokens, num_bytes)
    if arguments.json:
        planned = planned_run(found, shape, gpu_name or "", num_tokens)
        print_json(plan_record(found, plan) | {"predicted_seconds": seconds_record(planned)})
    else:
        times = time_lines(found, shape, gpu_name or "", num_tokens)
        print_document(standard_output(), memory_document(plan, plan_notes(found), times))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "memory",
        "Predict the memory and time of a run from its settings, by phase, before anything is loaded.\n"
        "Overrides are those of `atrium train`.",
        _EXAMPLES,
    )
    parser.add_overrides()
    parser.add_argument(
        "--prompt-tokens",
        type=whole(1),
        default=PROMPT_TOKENS,
        metavar="N",
        help=f"length of a prompt, which depends on the data (default: {PROMPT_TOKENS})",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        metavar="NAME",
        help="predict for a machine with vLLM and this GPU instead of this machine: " + ", ".join(GPUS),
    )
    device.add_argument(
        "--gpu-gb",
        type=whole(1),
        metavar="N",
        help="predict memory for a machine with vLLM and a GPU of N GB (10^9 bytes) instead of this machine",
    )
    parser.add_json("one JSON object, in bytes, instead of a table")
    return parser
