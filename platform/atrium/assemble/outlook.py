"""What a sweep of a language model would take: runs, hours and memory, computed before anything starts."""

from __future__ import annotations

from atrium.assemble.duration import planned_run
from atrium.assemble.memory import PROMPT_TOKENS, judge
from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.machine import machine_with_gpu
from atrium.planning.devices import GPUS, find_gpu
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import count_runs


def outlook(definition: SweepDefinition, gpu_name: str, num_workers: int) -> list[str]:
    """Lines about a sweep whose workers each have such a GPU. Raises `ConfigError` for an unknown one."""
    gpu = find_gpu(gpu_name)
    if gpu is None:
        raise ConfigError(f"plan={gpu_name}: not known here; known are {', '.join(GPUS)}")
    from atrium.assemble.shapes import exact_shape  # it loads transformers

    config = compose(list(definition.base), machine=machine_with_gpu())
    shape = exact_shape(config)
    config, plan = judge(config, shape, PROMPT_TOKENS, gpu.gigabytes * 10**9)
    duration = planned_run(config, shape, gpu)
    runs = count_runs(definition)
    num_runs, hours = sum(runs.values()), duration.run_s / 3600
    stages = " + ".join(f"{number} {stage}" for stage, number in runs.items())
    return [
        f"{num_runs} runs ({stages}), before anything is pruned",
        f"a run: {hours:.1f} h on one {gpu_name}; a step samples for {duration.sampling_s:.0f} s and updates "
        f"for {duration.update_s:.0f} s, evaluations take {duration.evaluation_s / 3600:.1f} h",
        f"the sweep: {num_runs * hours:.0f} GPU hours, {num_runs * hours / num_workers:.0f} h with "
        f"workers={num_workers}",
        f"memory: {plan.verdict}",
        "computed from bandwidth and operations for answers of half their limit, not measured",
    ]
