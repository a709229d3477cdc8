"""Convert the JSON of `make bench` to tables: one in the terminal, and those of docs/performance.md.

    python benchmarks/tables.py                  print a table of the stored results
    python benchmarks/tables.py --write FILE     update the tables of a Markdown file

In a Markdown file, the table of a benchmark is between `<!-- table: NAME -->` and `<!-- end -->`. A test
compares these tables with the JSON, so no figure can be older than its JSON.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from result_rows import COLUMNS, rows_of

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parents[1] / "docs" / "performance.md"
TITLES = {
    "step": "a training step against TRL",
    "pretrained": "a training step of a pretrained model against TRL",
    "loss_stage": "the loss stage against the bare LM head",
    "divergences": "trust regions against plain clipping",
    "packing": "packed against padded",
    "update_cost": "cost of a token as the batch grows",
    "grading": "the grader",
    "placement": "sampling by a server during the update",
    "start_up": "start-up",
    "gpu_correctness": "tests on a GPU",
    "gpu_train": "a run of trainer and vLLM on a GPU",
    "gpu_update": "updates on a GPU",
    "gpu_mismatch": "engine against trainer with a pretrained model on a GPU",
    "gpu_vllm": "tests of vLLM on a GPU",
    "gpu_memory": "predicted against measured memory on a GPU",
    "loss_stage_cuda": "the loss stage on a GPU",
    "gpu_rollout": "vLLM's rollouts on a GPU",
    "gpu_learning": "the built-in model learns on a GPU",
    "gpu_placement": "sampling by a server during the update on one GPU",
    "gpu_compile": "compiled against eager updates on a GPU",
    "gpu_step": "a training step against TRL on a GPU",
}
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_result(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON of one benchmark; None if it was not measured."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def markdown(folder: Path, name: str) -> str:
    """Return the table of one benchmark in Markdown, with machine and versions above it."""
    result = read_result(folder, name)
    if result is None:
        return "Not measured.\n"
    machine = result["machine"]
    load = f"{result['load_before']:g} to {result['load_after']:g}"
    on = machine.get("device", f"{machine['processor']}, {machine['num_cores']} cores")
    versions = ", ".join(result["versions"]) or f"Python {machine['python']}"
    lines = [
        f"{result['date']}, {on}, load {load}; {versions}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
        *("| " + " | ".join(row.cells()) + " |" for row in rows_of(result)),
    ]
    return "\n".join(lines) + "\n"


def renewed(text: str, folder: Path) -> str:
    """Return a Markdown text with its marked tables replaced by the results in `folder`."""
    return _MARKED.sub(lambda match: match[1] + markdown(folder, match[2]) + match[3], text)


def print_tables(folder: Path, names: Sequence[str], skipped: Mapping[str, str]) -> None:
    """Print one table of all benchmarks, and below it the skipped ones with the reason."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        *COLUMNS, box=box.SIMPLE_HEAD, title="ratios are paired: to the first arm, or of TRL to Atrium"
    )
    for name in names:
        result = read_result(folder, name)
        if result is None:
            continue
        table.add_section()
        table.add_row(f"[bold]{TITLES[name]}[/bold]")
        for row in rows_of(result):
            table.add_row(*row.cells())
    console.print(table)
    for name, reason in skipped.items():
        console.print(f"skipped: {TITLES.get(name, name)}: {reason}", soft_wrap=True)
    console.print(f"the JSON is in {folder}", soft_wrap=True)


def main() -> None:
    """Print the stored results, or update a Markdown file."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--write", type=Path, metavar="FILE", help="Markdown file whose marked sections are replaced"
    )
    options.add_argument("--results", type=Path, default=RESULTS)
    args = options.parse_args()
    if args.write is None:
        print_tables(args.results, [name for name in TITLES if read_result(args.results, name)], {})
        return
    text = args.write.read_text(encoding="utf-8")
    args.write.write_text(renewed(text, args.results), encoding="utf-8")


if __name__ == "__main__":
    main()
