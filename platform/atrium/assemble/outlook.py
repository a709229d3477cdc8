"""The predicted cost of a sweep that trains a language model: number of runs, hours, and memory."""

from __future__ import annotations

from atrium.assemble.choosing import with_split_of
from atrium.assemble.duration import time_lines
from atrium.assemble.memory import PROMPT_TOKENS, judge
from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.machine import machine_with_gpu
from atrium.planning.devices import GPUS, find_gpu
from atrium.planning.duration import planned_run
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import count_runs


def outlook(definition: SweepDefinition, gpu_name: str, num_workers: int) -> list[str]:
    """Return lines with the number of runs of a sweep, the predicted hours, and the memory per run.

    The prediction assumes that each of `num_workers` workers has a GPU of type `gpu_name`. Raises
    `ConfigError` for an unknown GPU.
    """
    gpu = find_gpu(gpu_name)
    if gpu is None:
        raise ConfigError(f"plan={gpu_name}: unknown GPU; use one of {', '.join(GPUS)}")
    from atrium.assemble.shapes import exact_shape  # it loads transformers

    config, num_bytes = compose(list(definition.base), machine=machine_with_gpu()), gpu.gigabytes * 10**9
    shape = exact_shape(config)
    config = with_split_of(config, definition.base, shape, gpu_name, num_bytes)
    config, plan = judge(config, shape, PROMPT_TOKENS, num_bytes)
    planned = planned_run(config, shape, gpu_name, PROMPT_TOKENS)
    runs = count_runs(definition)
    num_runs = sum(runs.values())
    stages = " + ".join(f"{number} {stage}" for stage, number in runs.items())
    lines = [f"a run: {line}" for line in time_lines(config, shape, gpu_name)]
    if planned is not None:
        hours = num_runs * planned.run_s / 3600
        lines.append(
            f"the sweep: {hours:.0f} GPU hours, {hours / num_workers:.0f} h with workers={num_workers}"
        )
    return [f"{num_runs} runs ({stages}), before anything is pruned", *lines, f"memory: {plan.verdict}"]
