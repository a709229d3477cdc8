"""`atrium export`: a copy of a checkpoint's policy as a plain transformers folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from atrium.assemble.exporting import chosen_step, export_policy
from atrium.assemble.model_card import CARD
from atrium.base.nested import setting
from atrium.base.recorded import read_object
from atrium.cli.parser import CommandParser, files_explained
from atrium.config.files import conf_folder, options_of
from atrium.document.formatting import size
from atrium.runs.find import TRAINED, find_run
from atrium.runs.layout import folder_size, step_name
from atrium.runs.run_folder import RunFolder


def main(argv: Sequence[str]) -> int:
    """Copy a checkpoint's policy to a transformers folder, print how to use it, and return 0."""
    parser = CommandParser(
        "export",
        "Write a run's policy as a plain transformers folder: config, weights, tokenizer, model card.\n"
        "The default is the latest checkpoint.",
    )
    parser.add_run()
    parser.add_checkpoint()
    parser.add_argument(
        "--to", metavar="DIR", help="the folder to write (default: export/step-... in the run directory)"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="only the adapters of a run with model.lora, in peft format",
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier export in this folder")
    arguments = parser.parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=TRAINED)
        step = chosen_step(folder, best=arguments.best, step=arguments.step)
        target = Path(arguments.to) if arguments.to else folder.path / "export" / step_name(step)
        lines = export_policy(folder, step, target, adapter=arguments.adapter, force=arguments.force)
    what = "adapters" if arguments.adapter else "policy"
    sys.stdout.write(
        f"wrote the {what} of {folder.name} at step {step} ({size(folder_size(target))}) to {target}\n"
        f"{target / CARD} is its model card; sample as in training with this Python code:\n"
    )
    sys.stdout.writelines(f"  {line}\n" for line in lines)
    evaluated = "checkpoint" if arguments.adapter else "exported policy"
    command = _evaluation(folder, step, None if arguments.adapter else target)
    sys.stdout.write(f"evaluate the {evaluated} with:\n  {command}\n")
    return 0


def _evaluation(folder: RunFolder, step: int, target: Path | None) -> str:
    """Return the command that evaluates the policy in `target` on the run's benchmark.

    If `target` is None, the command evaluates the run's checkpoint at `step`. If `conf` has no file for the
    benchmark, or for the dataset of a held-out benchmark, the command contains the placeholder `NAME`.
    """
    if target is None:
        return shlex.join(["atrium", "evaluate", "--run", str(folder.path), "--step", str(step)])
    config, _ = read_object(folder.config_file)
    chosen = [f"model={target.absolute()}"]
    for group in ("dataset", "benchmark"):
        name = setting(config, f"{group}.name") or setting(config, f"{group}.kind")
        if group == "benchmark" or setting(config, "benchmark.kind") == "held_out":
            chosen.append(f"{group}={name if name in options_of(conf_folder() / group) else 'NAME'}")
    return shlex.join(["atrium", "evaluate", *chosen])
