"""`atrium export`: a checkpoint's policy as a plain transformers folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from atrium.assemble.exporting import chosen_step, export_policy
from atrium.assemble.model_card import CARD
from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import size
from atrium.runs.find import TRAINED, find_run
from atrium.runs.layout import folder_size, step_name


def main(argv: Sequence[str]) -> int:
    """Copy a checkpoint's policy to a folder that transformers loads."""
    parser = CommandParser(
        "export",
        "Write a run's policy as a plain transformers folder: config, weights, tokenizer, model card.\n"
        "The latest checkpoint by default.",
    )
    parser.add_run()
    parser.add_checkpoint()
    parser.add_argument(
        "--to", metavar="DIR", help="the folder to write (default: export/step-... in the run folder)"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="only the adapters of a run with model.lora, as peft loads them",
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier export at that place")
    arguments = parser.parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=TRAINED)
        step = chosen_step(folder, best=arguments.best, step=arguments.step)
        target = Path(arguments.to) if arguments.to else folder.path / "export" / step_name(step)
        lines = export_policy(folder, step, target, adapter=arguments.adapter, force=arguments.force)
    what = "adapters" if arguments.adapter else "policy"
    sys.stdout.write(
        f"wrote the {what} of {folder.name} at step {step} ({size(folder_size(target))}) to {target}\n"
        f"{target / CARD} is its model card; sample it as in training with\n"
    )
    sys.stdout.writelines(f"  {line}\n" for line in lines)
    return 0
