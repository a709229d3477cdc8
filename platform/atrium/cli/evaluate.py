"""`atrium evaluate`: a model or a run's checkpoint on benchmarks, all checked before torch is loaded.

Settings are written as for `atrium train`. What is typed is composed and validated in `config.evaluation`;
the evaluation itself is `assemble.evaluation`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from atrium.cli.app import loading
from atrium.cli.runs_command import CommandParser, files_explained
from atrium.config.compose import compose, from_json
from atrium.config.evaluation import (
    EvaluatedCheckpoint,
    EvaluationSettings,
    checkpoint_evaluation,
    compose_evaluation,
    stored_evaluation,
)
from atrium.config.models import HubModelConfig
from atrium.errors import ConfigError, RunFolderError
from atrium.tracking.find import EVALUATED, WITH_CHECKPOINT, find_run
from atrium.tracking.run_folder import RunFolder

_DESCRIPTION = """\
Evaluate a model on benchmarks: Mean@K, Pass@k, Maj@K and Pass^k with their intervals.

Settings are key=value, as for `atrium train`: model, benchmark, evaluation (sampled, literature, greedy),
evaluation.num_samples for K, grader, rollout, compute. Every finished problem is recorded at once, so an
interrupted evaluation goes on with --resume and repeats nothing."""
_EXAMPLES = """\
examples:
  atrium evaluate model=hub model.source=Qwen/Qwen2.5-Math-1.5B benchmark=aime24 evaluation.num_samples=32
  atrium evaluate --run last                          a run's last checkpoint, as the run evaluates it
  atrium evaluate --run last --best benchmark=math500 evaluation=greedy
  atrium evaluate --resume last                       go on with the latest evaluation
"""


def main(argv: Sequence[str]) -> int:
    """Evaluate as `argv` says and print what came out; the exit code, or an `AtriumError`."""
    parser = _parser()
    try:
        arguments = parser.parse_intermixed_args(list(argv))
    except SystemExit:
        return 0  # only `--help` leaves this way; mistakes raise
    overrides: list[str] = arguments.overrides
    resume: Path | None = None
    with files_explained():
        if arguments.resume is not None:
            if overrides or arguments.run is not None:
                parser.error("--resume goes on with the settings there are; leave out the others")
            settings, resume = _stored(arguments.resume, arguments.runs_dir)
        else:
            settings = _new(arguments, overrides)
    if arguments.cfg:
        sys.stdout.write(json.dumps(settings.as_record(), indent=2) + "\n")
    else:
        _evaluate(settings, overrides, resume)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("evaluate", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings")
    parser.add_argument(
        "--run", metavar="RUN", help="evaluate a checkpoint of this run: `last`, its name, or its folder"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the checkpoint that was best on validation")
    which.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint at this step (default: the last)"
    )
    parser.add_argument(
        "--resume", metavar="EVALUATION", help="go on with an evaluation: `last`, its name, or its folder"
    )
    parser.add_argument("--cfg", action="store_true", help="show the settings instead of evaluating")
    parser.add_runs_dir()
    return parser


def _new(arguments: argparse.Namespace, overrides: list[str]) -> EvaluationSettings:
    if arguments.run is not None:
        runs_dir = _runs_dir(arguments, overrides)
        folder = find_run(runs_dir, arguments.run, last=WITH_CHECKPOINT)
        return _of_run(folder, arguments, overrides)
    settings = compose_evaluation([*_runs_dir_line(arguments, overrides), *overrides])
    model = settings.config.model
    found = _place_in_run(Path(model.source).expanduser()) if isinstance(model, HubModelConfig) else None
    if found is not None:
        # A path into a run means that run, with the prompt that its policy was trained on.
        folder, arguments.step = found[0], found[1] if arguments.step is None else arguments.step
        rest = [line for line in overrides if line != "model=hub" and not line.startswith("model.source=")]
        return _of_run(folder, arguments, rest)
    if arguments.best or arguments.step is not None:
        raise ConfigError("--best and --step choose among a run's checkpoints; name the run with --run")
    return settings


def _of_run(folder: RunFolder, arguments: argparse.Namespace, overrides: list[str]) -> EvaluationSettings:
    from atrium.cli.runs_export import POLICY_FOLDER, check_policy, chosen_step

    step = chosen_step(folder, best=arguments.best, step=arguments.step)
    policy = folder.checkpoint_path(step) / POLICY_FOLDER
    check_policy(policy)
    try:
        trained = from_json(folder.config_file.read_text(encoding="utf-8"), trains=False)
    except ConfigError as error:
        raise RunFolderError(f"--run {folder.name}: {error}") from error
    trained = trained.model_copy(update={"runs_dir": _runs_dir(arguments, overrides, folder)})
    checkpoint = EvaluatedCheckpoint(run=folder.name, step=step, seed=trained.seed)
    return checkpoint_evaluation(trained, checkpoint, policy=policy.absolute(), overrides=overrides)


def _stored(wanted: str, runs_dir: str) -> tuple[EvaluationSettings, Path]:
    folder = find_run(runs_dir, wanted, last=EVALUATED)
    if not folder.config_file.is_file():
        raise RunFolderError(
            f"{folder.path} has no config.json, so its settings are not known; evaluate anew"
        )
    return stored_evaluation(folder.config_file.read_text(encoding="utf-8"), folder.path), folder.path


def _place_in_run(path: Path) -> tuple[RunFolder, int | None] | None:
    """The run, and the step if it is said, where a path leads to a run or into its checkpoints."""
    from atrium.tracking.layout import step_of

    if not path.is_dir():
        return None
    for place in (path, path.parent):
        folder = RunFolder(place.parent.parent)
        if place.parent.name == "checkpoints" and folder.looks_like_run():
            return folder, step_of(place.name)
    folder = RunFolder(path)
    return (folder, None) if folder.status_file.is_file() and folder.checkpoint_steps() else None


def _runs_dir_line(arguments: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    is_given = any(line.startswith("runs_dir=") for line in overrides)
    return [] if is_given or arguments.runs_dir == "runs" else [f"runs_dir={arguments.runs_dir}"]


def _runs_dir(
    arguments: argparse.Namespace, overrides: Sequence[str], folder: RunFolder | None = None
) -> str:
    """Where the evaluation is filed: where it is said, else beside the run."""
    lines = [line for line in overrides if line.startswith("runs_dir=")]
    if lines:
        return compose(lines).runs_dir
    if folder is not None:
        return str(folder.path.parent.parent)
    return str(arguments.runs_dir)


def _evaluate(settings: EvaluationSettings, overrides: Sequence[str], resume: Path | None) -> None:
    # Only now: these need numpy and torch, and most mistakes have been found without them.
    from atrium.cli.evaluate_summary import print_evaluation
    from atrium.cli.preflight import check_before_run
    from atrium.cli.train import print_notes, set_threads

    check_before_run(settings.config)
    if resume is None and settings.checkpoint is None:
        print_notes(settings.config, overrides)
    set_threads(settings.config)
    with loading():
        from atrium.assemble.evaluation import run_evaluation

    folder = run_evaluation(settings, overrides, resume=resume)
    with files_explained():
        print_evaluation(RunFolder(folder))
