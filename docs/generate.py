"""Write what is read off the code (`make docs`): settings, metrics, conf/schema.json, counts of methods."""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from generate_schema import schema_text
from generate_settings import SettingsPage

from atrium.base.metrics import CATALOGUE, SYSTEM, Quantity, gpu_quantities, part_quantities
from atrium.config.help import flat
from atrium.config.presets import read_presets
from atrium.peers.trainers import OWN_LOOP, TRL, VERL

_METRICS = """\
# Metrics

Generated from `platform/atrium/base/metrics.py` by `make docs`; do not edit. These are the names in
`metrics.jsonl`, in the mirrors and in the dashboard. Values of a step are combined over micro-batches,
updates and processes as the column says, exactly. Evaluations are recorded as
`evaluation/BENCHMARK/mean_at_8` and alike; [statistics.md](statistics.md) says what they are.
"""
_STAGES = {
    "rollout": "Rollouts: what was sampled, and how it was graded",
    "mismatch": "The engine against the trainer, at equal weights",
    "objective": "The objective, over the tokens of all updates of the step",
    "optimizer": "The optimizer",
    "time": "Time",
    "memory": "Memory",
    "ranks": "Processes",
    "system": "The machine over time",
}
_SYSTEM = """\
`system.jsonl` holds these values, with `time` and the last finished `step`, of the machine of the run's first
process. A value that cannot be read is left out. Values of GPU `N` need the package `nvidia-ml-py` (extra
`gpu`), and only vLLM reports a queue. `tracking.system_metrics=false` records none.
"""


def metrics_page() -> str:
    """Every recorded quantity with its unit, how its values combine, and its meaning."""
    lines = [_METRICS]
    by_stage = sorted(
        (*CATALOGUE.values(), *part_quantities("NAME"), *SYSTEM, *gpu_quantities("N")),
        key=lambda one: list(_STAGES).index(_stage(one)),
    )
    for stage, quantities in groupby(by_stage, key=_stage):
        lines += [
            f"## {_STAGES[stage]}",
            "",
            *([_SYSTEM] if stage == "system" else []),
            "| metric | unit | combined by | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{one.name}` | {one.unit} | {one.reduction.value} | {_cell(one.meaning)} |"
            for one in quantities
        ]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


_METHODS_THAT_RUN = re.compile(
    r"(?<=Of the )\d+ shipped methods, \d+ run unchanged in TRL, \d+ in verl and \d+"
)


def with_counts(page: str) -> str:
    """The page with the numbers of methods that run in other trainers, by the table of docs/methods.md."""
    methods = [preset.method for preset in read_presets()]
    trl, verl, own = (sum(not one.lacks(method) for method in methods) for one in (TRL, VERL, OWN_LOOP))
    counts = f"{len(methods)} shipped methods, {trl} run unchanged in TRL, {verl} in verl and {own}"
    text, num_places = _METHODS_THAT_RUN.subn(counts, page)
    assert num_places == 1
    return text


def _stage(quantity: Quantity) -> str:
    return quantity.name.partition("/")[0]


def _cell(text: str) -> str:
    return flat(text).replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    repository = Path(__file__).parents[1]
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else repository
    texts = {
        "docs/settings.md": SettingsPage().text(),
        "docs/metrics.md": metrics_page(),
        "conf/schema.json": schema_text(),
        **{
            name: with_counts((repository / name).read_text("utf-8"))
            for name in ("README.md", "docs/trainers.md")
        },
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
