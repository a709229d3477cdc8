"""`atrium memory`: what settings need of memory, by item and phase, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.assemble.memory import PROMPT_TOKENS, judge, plan_notes, plan_record
from atrium.cli.parser import CommandParser, whole
from atrium.config.compose import compose
from atrium.config.machine import machine_with_gpu
from atrium.planning.document import memory_document
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
    machine = None if arguments.gpu_gb is None else machine_with_gpu()
    config = compose(arguments.overrides, machine=machine)
    # Only now: they load numpy and torch, and most mistakes have been found without them.
    from atrium.assemble.checks import device_bytes
    from atrium.assemble.shapes import exact_shape

    num_bytes = device_bytes(config) if arguments.gpu_gb is None else arguments.gpu_gb * _GB
    found, plan = judge(config, exact_shape(config), arguments.prompt_tokens, num_bytes)
    if arguments.json:
        print_json(plan_record(found, plan))
    else:
        print_document(standard_output(), memory_document(plan, plan_notes(found)))
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
        type=whole(1),
        default=PROMPT_TOKENS,
        metavar="N",
        help=f"length of a prompt, which only the data knows (default: {PROMPT_TOKENS})",
    )
    parser.add_argument(
        "--gpu-gb",
        type=whole(1),
        metavar="N",
        help="plan for a machine with vLLM and a GPU of N GB (10^9 bytes) instead of this one",
    )
    parser.add_json("one JSON object, in bytes, instead of a table")
    return parser
