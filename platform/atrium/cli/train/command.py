"""`atrium train`, `config` and `rerun`: from a command line to a run, all checked before torch is loaded.

The syntax is Hydra's. One run is composed and started here; `--multirun`, `--cfg`, `--info` and shell
completion are Hydra's own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from atrium.base import plugins
from atrium.base.errors import AtriumError, ConfigError, Interrupted, RunFolderError
from atrium.base.plain_files import read_plain
from atrium.base.processes import END_SIGNALS, stopped_at_once
from atrium.base.recorded import read_object
from atrium.cli.app import loading, one_line
from atrium.cli.parser import CommandParser, ask_for_plugins, files_explained
from atrium.cli.seed_plan import with_seed_plan
from atrium.cli.train.branching import begin_branch, branch_config, split_step
from atrium.cli.train.help import help_text
from atrium.cli.train.hydra_flags import PROGRAM, complete_shell, parse_flags, run_hydra
from atrium.cli.train.launching import check_node, is_rank, is_started_here, print_script, start, submit
from atrium.config.compose import (
    compose,
    compose_all,
    compose_notes,
    from_json,
    hydra_lines,
    to_json,
    with_files,
)
from atrium.config.dates import dated
from atrium.config.earlier import placement_note
from atrium.config.machine import engine_choice, this_machine
from atrium.config.nearest import shown
from atrium.config.resume import resumed, schedule_note
from atrium.config.schema import RunConfig
from atrium.runs.find import TRAINED, find_run
from atrium.runs.run_folder import RunFolder

_RESUME = "resume"
_FROM_STEP = "from-step"
_FROM_CONFIG = "from-config"
_PRINT_SCRIPT = "--print-script"
_PROFILED_STEP = 2
_CONFIG_HELP = """\
Usage: atrium config [OVERRIDES]

Prints the configuration that `atrium train OVERRIDES` would run, as it is stored in the record of a
run: validated, every default filled in, every `auto` replaced by what it means on this machine.
`atrium train OVERRIDES --cfg job` prints it as the files have it.
"""


def main(argv: Sequence[str]) -> int:
    """Train as `argv` says, or show what was asked for; the exit code, or an `AtriumError`."""
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(help_text([one for one in argv if not one.startswith("-") and "=" not in one]))
        return 0
    origin, arguments, argv = _origin(argv)
    is_shown_only = _PRINT_SCRIPT in arguments
    arguments = [argument for argument in arguments if argument != _PRINT_SCRIPT]
    flags = parse_flags(arguments)
    overrides: list[str] = flags.overrides
    is_shown = flags.hydra_help or flags.cfg or flags.info
    if origin.run is not None and (flags.multirun or is_shown or origin.file is not None):
        raise ConfigError(
            f"{_RESUME}={origin.run}: a run is continued alone and with the settings it has; leave out the "
            f"other flags, or see them with `atrium show {origin.run}`"
        )
    if flags.shell_completion:
        complete_shell(overrides)
    elif is_shown:
        compose(overrides)  # so that mistakes read the same here as when training
        run_hydra(_without(arguments, overrides), hydra_lines(overrides))
    elif flags.multirun:
        return _train_many(overrides)
    else:
        _train_one(origin, overrides, argv, is_shown_only=is_shown_only)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """What a run begins from: a run, as it is, gone back to a step, or as a new run; or a stored file."""

    run: str | None
    branch_step: int | None
    from_step: int | None
    file: str | None


def _origin(argv: Sequence[str]) -> tuple[_Origin, list[str], list[str]]:
    """What the command line names, its other arguments, and those that processes are started with."""
    from_step, argv = _take_step(with_seed_plan(argv))
    run, arguments = _take(_RESUME, _profiled(with_files(argv)))
    file, arguments = _take(_FROM_CONFIG, arguments)
    if from_step is not None and run is None:
        raise ConfigError(f"--{_FROM_STEP} {from_step}: goes back in a run; allowed is with --{_RESUME} RUN")
    run, branch_step = (None, None) if run is None else split_step(run)
    if branch_step is not None and from_step is not None:
        raise ConfigError(f"--{_FROM_STEP} {from_step}: {_RESUME}={run}@{branch_step} names a step already")
    return _Origin(run=run, branch_step=branch_step, from_step=from_step, file=file), arguments, argv


def _train_one(
    origin: _Origin, overrides: Sequence[str], argv: Sequence[str], *, is_shown_only: bool
) -> None:
    """Check one run and train it, or print what would be submitted."""
    stored: RunConfig | None = None
    if origin.run is not None:
        stored, config = _continued(origin.run, origin.branch_step, overrides)
    else:
        config = _new(overrides) if origin.file is None else _repeated(origin.file, overrides)
    step = _check_machine(config, origin.branch_step if origin.from_step is None else origin.from_step)
    if is_shown_only:
        print_script(config)
        return
    notes = [] if is_rank() else _notes(origin, stored, config, step)
    if origin.run is None and origin.file is None:
        print_notes(config, overrides)
    if origin.from_step is not None:
        _go_back(config, origin.from_step)
    if origin.branch_step is not None:
        config, argv = _branch(config, origin.branch_step, overrides)
    for note in notes:
        sys.stdout.write(f"note: {note}\n")
        if config.resume is not None:
            RunFolder(Path(config.resume)).append_log(f"note: {note}")
    if is_started_here(config):
        _train(config, overrides)
    else:
        start(config, overrides, argv)


def main_config(argv: Sequence[str]) -> int:
    """Print the configuration of the overrides `argv`, or raise `ConfigError`."""
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(_CONFIG_HELP)
        return 0
    sys.stdout.write(to_json(compose(with_seed_plan(argv))))
    return 0


def main_rerun(argv: list[str]) -> int:
    """Train a new run with the stored settings of another."""
    parser = CommandParser(
        "rerun",
        "Train a new run with the settings of another, its seed included. On the same machine and with\n"
        "the same code it repeats the other's metrics bit for bit, times excepted.",
    )
    parser.add_run()
    arguments = parser.parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=TRAINED)
        if not folder.config_file.is_file():
            raise RunFolderError(f"{folder.path} has no config.json, so its settings are not known")
    ask_for_plugins(folder)
    return main([f"--{_FROM_CONFIG}", str(folder.config_file)])


def _take_step(argv: Sequence[str]) -> tuple[int | None, list[str]]:
    """The step to go back to, and the arguments without it, which are what processes are started with."""
    text, rest = _take(_FROM_STEP, argv, "a step that has a checkpoint, or 0 for the start")
    if text is None:
        return None, rest
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"--{_FROM_STEP} {text}: allowed is the number of a step")
    return int(text), rest


def _go_back(config: RunConfig, step: int) -> None:
    from atrium.cli.train.checks import go_back

    assert config.resume is not None
    if config.branch is not None and step < config.branch.step:
        raise ConfigError(
            f"--{_FROM_STEP} {step}: the run began at step {config.branch.step} of {config.branch.run}; "
            f"allowed are steps from {config.branch.step} on"
        )
    if os.environ.get("RANK", "0") != "0":
        return  # the first of the processes that torchrun started goes back for all
    if (aside := go_back(config.resume, step)) is not None:
        sys.stdout.write(f"back to step {step}: what came later is kept in {aside}\n")


def _profiled(argv: Sequence[str]) -> list[str]:
    """The arguments with `--profile` as the setting that it stands for: the second step, past first costs."""
    return [f"compute.profile_step={_PROFILED_STEP}" if word == "--profile" else word for word in argv]


def _take(
    name: str, argv: Sequence[str], allowed: str = "one of what `atrium runs` lists"
) -> tuple[str | None, list[str]]:
    """The value of `--NAME VALUE`, `--NAME=VALUE` or `NAME=VALUE`, and the arguments without it."""
    found: str | None = None
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        flag, has_value, value = argument.partition("=")
        if flag != f"--{name}" and not (flag.lstrip("+") == name and has_value):
            rest.append(argument)
            continue
        found = value if has_value else next(arguments, "")
        if not found or found.startswith("-"):
            raise ConfigError(f"{argument}: nothing is named; allowed is --{name} with {allowed}")
    return (None if found == "null" else found), rest


def _without(arguments: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The flags among the arguments, with their values."""
    left = Counter(overrides)
    flags = []
    for argument in arguments:
        if left[argument]:
            left[argument] -= 1
        else:
            flags.append(argument)
    return flags


def _new(overrides: Sequence[str]) -> RunConfig:
    config = compose(overrides)
    if config.resume is not None:
        raise ConfigError(
            f"{_RESUME}={config.resume} is no plain setting; allowed is --resume {config.resume}"
        )
    return config


def print_notes(config: RunConfig, overrides: Sequence[str]) -> None:
    """Say what the user should know about settings that are not wrong."""
    for note in compose_notes(config, overrides):
        sys.stdout.write(f"note: {note}\n")


def _repeated(file: str, overrides: Sequence[str]) -> RunConfig:
    """The stored configuration of a run, for a new run that repeats it."""
    if overrides:
        raise ConfigError(f"{shown(overrides[0])}: a repeated run keeps its settings; leave out overrides")
    config = _read_stored(Path(file), f"--{_FROM_CONFIG} {file}").model_copy(update={"resume": None})
    if config.branch is not None:
        raise ConfigError(
            f"--{_FROM_CONFIG} {file}: that run went on from a step of another; allowed is "
            f"--{_RESUME} {config.branch.run}@{config.branch.step} with its settings"
        )
    return config


def _continued(run: str, step: int | None, overrides: Sequence[str]) -> tuple[RunConfig, RunConfig]:
    """The stored configuration of a run, and the one that continues it."""
    runs_dir = compose([line for line in overrides if line.startswith("runs_dir=")]).runs_dir
    try:
        folder = find_run(runs_dir, run, last=TRAINED)
    except RunFolderError as error:
        raise RunFolderError(f"{_RESUME}={run}: {error}") from error
    if not is_rank():  # whose launcher has asked
        for line in ask_for_plugins(folder):
            folder.append_log(line)
    stored = _read_stored(folder.config_file, f"{_RESUME}={run}")
    if step is not None:
        return stored, branch_config(stored, folder, step, overrides)
    return stored, resumed(stored, folder.path, overrides)


def _notes(origin: _Origin, stored: RunConfig | None, config: RunConfig, step: int) -> list[str]:
    """What a run that begins from a recorded one does otherwise, a line each."""
    file = Path(origin.file) if origin.file is not None else None
    if config.resume is not None:
        file = RunFolder(Path(config.resume)).config_file
    placement = None if file is None else placement_note(read_object(file)[0])
    schedule = None if stored is None else schedule_note(stored, config, step)
    return [note for note in (placement, schedule) if note is not None]


def _branch(config: RunConfig, step: int, overrides: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """The configuration that continues the new run of `--resume RUN@STEP`, and the arguments that do."""
    assert config.resume is not None
    begun = begin_branch(config, RunFolder.open(config.resume), step, overrides)
    assert begun.resume is not None
    sys.stdout.write(f"a new run goes on from step {step} of {RunFolder(Path(config.resume)).name}\n")
    return begun, [f"--{_RESUME}", begun.resume]


def _read_stored(file: Path, wanted: str) -> RunConfig:
    try:
        return from_json(read_plain(file).decode())
    except ConfigError as error:
        raise RunFolderError(f"{wanted}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RunFolderError(
            f"{wanted}: {file.name} cannot be read ({reason}); `atrium runs` lists the runs there are"
        ) from error


def _train_many(overrides: Sequence[str]) -> int:
    """Every job of a multirun, one after the other; the highest exit code of those that failed."""
    began = time.time()
    jobs = [(lines, dated(config, began)) for lines, config in compose_all(overrides)]
    for _, config in jobs:
        _check_machine(config)
    if any(config.compute.slurm is not None for _, config in jobs):
        submit([(config, _with_date(lines, config)) for lines, config in jobs])
        return 0
    codes: list[int] = []
    waiting = iter(enumerate(jobs, start=1))

    def train(_: DictConfig) -> None:
        number, (lines, config) = next(waiting)
        sys.stdout.write(f"run {number} of {len(jobs)}: {' '.join(lines)}\n")
        # What a run records as its command: this job alone, and not Hydra's way to it.
        sys.argv = [PROGRAM, "train", *_with_date(lines, config), *plugins.flags()]
        try:
            print_notes(config, lines)
            if is_started_here(config):
                _train(config, lines)
            else:
                start(config, lines, lines)
            codes.append(0)
        except Interrupted as error:
            # Hydra would go on with the next job.
            raise KeyboardInterrupt from error
        except AtriumError as error:
            sys.stderr.write(f"error: {one_line(error)}\n")
            codes.append(error.exit_code)

    run_hydra(["--multirun"], hydra_lines(overrides), task=train)
    return max(codes, default=0)


def _with_date(lines: Sequence[str], config: RunConfig) -> list[str]:
    return [*lines, f"model.date={config.model.date}"]


def _check_machine(config: RunConfig, from_step: int | None = None) -> int:
    """Check what a run needs of the machine and its checkpoint; the step that it goes on from."""
    # Only now: it needs numpy, and most mistakes have been found without it.
    from atrium.cli.train.checks import check_checkpoint_model, check_machine, step_to_go_on_from

    step = step_to_go_on_from(config, from_step)
    check_machine(config)
    check_checkpoint_model(config, from_step)
    return step


def _train(config: RunConfig, overrides: Sequence[str]) -> None:
    if config.rollout.placement == "server":
        check_node(config)
    with stopped_at_once(_stopped, END_SIGNALS) as stop_if_asked:
        set_threads(config)
        from atrium.assemble.graders import build_grader
        from atrium.views.terminal import waiting

        with build_grader(config.grader, config.model) as grader:  # its worker starts while torch is loaded
            with waiting("loading torch"), loading():
                # Only now: torch reads the environment when it is loaded.
                from atrium.assemble.training import run_training

            stop_if_asked()
            run_training(config, grader, overrides)


def _stopped(number: int) -> Interrupted:
    return Interrupted(f"stopped by {signal.Signals(number).name} before training was set up")


def set_threads(config: RunConfig) -> None:
    """Put the thread count, passive waiting and what vLLM reads into the environment, and say so."""
    compute = config.compute
    os.environ["OMP_NUM_THREADS"] = str(compute.num_threads)
    policy = os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    threads = "1 thread" if compute.num_threads == 1 else f"{compute.num_threads} threads"
    tokens = compute.micro_batch_tokens
    size = "as many tokens as fit" if tokens == "auto" else f"{tokens} tokens"
    sys.stdout.write(
        f"compute: {compute.device}, {compute.dtype}, {threads} waiting {policy.lower()}ly, "
        f"micro-batches of {size}\n"
    )
    _prepare_engine(config)
    sys.stdout.flush()


def _prepare_engine(config: RunConfig) -> None:
    """Say which engine samples, and put what it reads into the environment."""
    rollout = config.rollout
    if config.model.kind != "tiny" and not rollout.reads_stored:
        engine, reason = engine_choice(config.model.kind, config.compute.device, this_machine())
        because = reason if engine == rollout.engine else "as asked for"
        sys.stdout.write(f"rollout: {rollout.engine}, {because}\n")
    rollout.prepare_environment(config.compute.device, Path(config.runs_dir) / ".cache")
