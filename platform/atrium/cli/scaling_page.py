"""The computed tables of `docs/scaling.md`: Markdown from the formulas of `atrium memory`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from atrium.assemble.memory import dimensions_of
from atrium.config.compose import conf_folder
from atrium.errors import ConfigError
from atrium.models.architecture import random_architecture
from atrium.train.memory_plan import ModelDimensions
from atrium.train.scaling_plan import (
    H100,
    H200,
    Hardware,
    StepPlan,
    Workload,
    exchanged_bytes,
    fitting_plan,
    needed_bandwidth,
    plan_step,
)

BEGIN, END = "<!-- computed: begin -->", "<!-- computed: end -->"
MODELS = {"Qwen3-1.7B": "qwen3_1_7b", "Qwen3-8B": "qwen3_8b", "Qwen3-32B": "qwen3_32b"}
NUM_GPUS = (1, 2, 4, 8, 16, 32, 64)
WORK = Workload(
    num_prompts=128,
    group_size=16,
    num_prompt_tokens=256,
    num_completion_tokens=3840,
    micro_batch_tokens=4096,
)
LONG_WORK = Workload(
    num_prompts=128,
    group_size=16,
    num_prompt_tokens=256,
    num_completion_tokens=7936,
    micro_batch_tokens=8192,
)


def write_tables(page: Path) -> None:
    """Put the tables between the marks of a page; `ConfigError` where it has none."""
    text = page.read_text(encoding="utf-8")
    before, has_begin, rest = text.partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not has_begin or not has_end:
        raise ConfigError(f"{page} lacks the lines {BEGIN} and {END}, between which the tables stand")
    page.write_text(f"{before}{BEGIN}\n\n{computed_tables()}\n{END}{after}", encoding="utf-8")


def computed_tables() -> str:
    """All tables, one section per kind of GPU and length."""
    parts = [
        _section(H100, WORK),
        _section(H200, LONG_WORK),
        _bandwidths(H100, WORK),
    ]
    return "\n".join(parts)


def _section(hardware: Hardware, work: Workload) -> str:
    lines = [
        f"### {hardware.name}, completions of {work.num_completion_tokens:,} tokens",
        "",
        f"{work.num_prompts} prompts x {work.group_size} completions, all of {work.row_tokens:,} tokens "
        "with their prompt; one pass over the batch and one behavior pass; bfloat16 with float32 master "
        f"weights, micro-batches of {work.micro_batch_tokens:,} tokens. "
        "Every number is computed.",
        "",
    ]
    for name, file in MODELS.items():
        lines += [
            f"**{name}**",
            "",
            "| GPUs | per engine | sampling, GB | update, GB | activations | sampling, s | update, s "
            "| exchange, s | sync, s | step, s | what limits |",
            "|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---|",
            *(_row(fitting_plan(_model(file), work, hardware, number), hardware) for number in NUM_GPUS),
            "",
        ]
    return "\n".join(lines)


def _row(plan: StepPlan, hardware: Hardware) -> str:
    times = [plan.sampling_s, plan.update_s, plan.exchange_s, plan.sync_s, plan.step_s]
    if not plan.fits(hardware):
        # Times of what cannot run would only mislead.
        times = [math.inf] * len(times)
    cells = [
        str(plan.num_gpus),
        str(plan.tensor_parallel),
        f"{plan.sampling_bytes / 1e9:,.0f}",
        f"{plan.update_bytes / 1e9:,.0f}",
        "again" if plan.recomputes else "kept",
        *(f"{seconds:,.1f}" if math.isfinite(seconds) else "–" for seconds in times),
        _limit(plan, hardware),
    ]
    return f"| {' | '.join(cells)} |"


def _limit(plan: StepPlan, hardware: Hardware) -> str:
    usable = hardware.usable_frac * hardware.memory_bytes
    if plan.update_bytes > usable:
        return "memory of the update"
    if not plan.fits(hardware):
        return "memory of the engine"
    name, share = max(plan.shares().items(), key=lambda item: item[1])
    return f"{name}, {share:.0%}"


def _bandwidths(hardware: Hardware, work: Workload) -> str:
    lines = [
        f"### Bandwidth, per GPU ({hardware.name}, completions of {work.num_completion_tokens:,} tokens)",
        "",
        "What one GPU receives in a step, and how fast it must receive it so that the exchange hides behind "
        f"the products. An {hardware.name} has {hardware.node_bandwidth / 1e9:.0f} GB/s within a node and, "
        f"with an adapter of 400 Gbit/s each, {hardware.network_bandwidth / 1e9:.0f} GB/s between nodes. "
        "Every number is computed.",
        "",
        "| model | GPUs | exchange, GB | needed, GB/s | sync, GB | needed with twice the micro-batch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, file in MODELS.items():
        for number in (8, 64):
            model = _model(file)
            plan = plan_step(model, work, hardware, number)
            double = replace(work, micro_batch_tokens=2 * work.micro_batch_tokens)
            needed = exchanged_bytes(model, double, number) / plan.update_s
            rates = (needed_bandwidth(plan), needed)
            own, twice = (f"{rate / 1e9:,.0f}" for rate in rates)
            received, synced = f"{plan.exchanged_bytes / 1e9:,.0f}", f"{plan.synced_bytes / 1e9:,.1f}"
            lines.append(f"| {name} | {number} | {received} | {own} | {synced} | {twice} |")
    return "\n".join([*lines, ""])


@cache
def _model(file: str) -> ModelDimensions:
    shipped = yaml.safe_load((conf_folder() / "model" / f"{file}.yaml").read_text(encoding="utf-8"))
    return dimensions_of(random_architecture(shipped["architecture"]))
