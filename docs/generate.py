"""Write the pages that are read off the code: docs/settings.md and docs/metrics.md (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from atrium.cli.train.help import Schema, allowed, default_text, flat, kinds
from atrium.config.schema import RunConfig
from atrium.metrics import CATALOGUE, Quantity

_SETTINGS = """\
# Settings

Generated from the classes of the settings by `make docs`; do not edit. `atrium train --help SECTION` says
the same in a terminal. `SECTION.SETTING=VALUE` changes a setting, and `atrium train --cfg job --resolve`
shows all values of a run.
"""
_METRICS = """\
# Metrics

Generated from `platform/atrium/metrics.py` by `make docs`; do not edit. These are the names in
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
}


def settings_page() -> str:
    """Every setting of a run with its values, default and meaning, by section and kind."""
    schema = RunConfig.model_json_schema()
    own, sections = [], []
    for name, node in schema["properties"].items():
        (sections if kinds(node, schema) else own).append((name, node))
    lines = [_SETTINGS, "## Of no section", "", *_table(own, schema), ""]
    for name, node in sections:
        lines += [f"## {name}", "", _cell(node.get("description", "")), ""]
        for kind in kinds(node, schema):
            lines += _kind(name, kind, schema)
    return "\n".join(lines).rstrip() + "\n"


def _kind(path: str, kind: Schema, schema: Schema) -> Iterator[str]:
    """One class of a section, and then the sections within it."""
    properties = dict(kind["properties"])
    tag = next((key for key in ("kind", "engine") if key in properties), None)
    if tag:
        yield from (f"### `{path}.{tag}={allowed(properties.pop(tag), schema)}`", "")
    yield from (_cell(kind.get("description", "")), "")
    plain = [(f"{path}.{name}", node) for name, node in properties.items() if not kinds(node, schema)]
    if plain:
        yield from (*_table(plain, schema, required=kind.get("required", ())), "")
    for name, node in properties.items():
        for inner in kinds(node, schema):
            yield from (f"#### `{path}.{name}`", "", _cell(node.get("description", "")), "")
            yield from _kind(f"{path}.{name}", inner, schema)


def _table(
    settings: list[tuple[str, Schema]], schema: Schema, *, required: tuple[str, ...] = ()
) -> Iterator[str]:
    yield from ("| setting | values | default | meaning |", "|---|---|---|---|")
    for path, node in settings:
        default = default_text(node, is_required=path.rpartition(".")[2] in required)
        cells = (f"`{path}`", allowed(node, schema), default, node.get("description", ""))
        yield f"| {' | '.join(map(_cell, cells))} |"


def metrics_page() -> str:
    """Every recorded quantity with its unit, how its values combine, and its meaning."""
    lines = [_METRICS]
    by_stage = sorted(CATALOGUE.values(), key=lambda one: list(_STAGES).index(_stage(one)))
    for stage, quantities in groupby(by_stage, key=_stage):
        lines += [
            f"## {_STAGES[stage]}",
            "",
            "| metric | unit | combined by | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{one.name}` | {one.unit} | {one.reduction.value} | {_cell(one.meaning)} |"
            for one in quantities
        ]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _stage(quantity: Quantity) -> str:
    return quantity.name.partition("/")[0]


def _cell(text: str) -> str:
    return flat(text).replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, text in (("settings.md", settings_page()), ("metrics.md", metrics_page())):
        (folder / name).write_text(text, encoding="utf-8")
