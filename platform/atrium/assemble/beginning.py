"""Functions that check runs and evaluations given on the command line, and start them locally or on SLURM.

A run is new, resumed, branched from a step of another run, or repeated from a stored configuration. All
settings are checked before torch is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.assemble.alike import alike_notes
from atrium.assemble.branching import begin_branch, branch_config, split_step
from atrium.assemble.launching import check_node, is_rank, is_started_here, print_script, start, submit
from atrium.base import plugins
from atrium.base.errors import AtriumError, ConfigError, Interrupted, RunFolderError
from atrium.base.loading import loading
from atrium.base.plain_files import read_plain
from atrium.base.processes import END_SIGNALS, stopped_at_once
from atrium.base.recorded import read_object
from atrium.config.compose import compose, compose_notes, from_json
from atrium.config.dates import dated
from atrium.config.earlier import placement_note
from atrium.config.evaluation import EvaluationSettings
from atrium.config.machine import engine_choice, this_machine
from atrium.config.multirun import compose_all
from atrium.config.nearest import shown
from atrium.config.resume import resumed, schedule_note
from atrium.config.schema import RunConfig
from atrium.runs.find import TRAINED, find_run
from atrium.runs.layout import IMPORTED
from atrium.runs.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The run or stored configuration that a run starts from; all fields are None for a new run.

    `run` names the run to resume. If `from_step` is given, that run is rewound to this step first; if
    `branch_step` is given, a new run branches from that step. `file` is the configuration file to repeat.
    """

    run: str | None = None
    branch_step: int | None = None
    from_step: int | None = None
    file: str | None = None

    @classmethod
    def named(cls, run: str | None, from_step: int | None, file: str | None) -> Origin:
        """Return the origin given by `--resume`, `--from-step` and `--from-config`.

        Raises `ConfigError` for contradictory flags.
        """
        if from_step is not None and run is None:
            raise ConfigError(
                f"--from-step {from_step} rewinds a run, so it requires --resume; add --resume RUN"
            )
        run, branch_step = (None, None) if run is None else split_step(run)
        if branch_step is not None and from_step is not None:
            raise ConfigError(
                f"--from-step {from_step} cannot be combined with resume={run}@{branch_step}, which "
                "already names a step; remove one of them"
            )
        return cls(run=run, branch_step=branch_step, from_step=from_step, file=file)

    @property
    def arguments(self) -> list[str]:
        """The flags of `atrium train` that name this origin's run or configuration file, without a step."""
        flags = {"--resume": self.run, "--from-config": self.file}
        return [word for flag, value in flags.items() if value is not None for word in (flag, value)]


def begin(origin: Origin, overrides: Sequence[str], *, prints_job: bool = False) -> None:
    """Check a run and start it: in this process, in several processes, or as a SLURM job.

    With `prints_job`, only check the run and print its SLURM script. If `origin` resumes a finished run
    without naming a step, only print how to train it further.
    """
    stored: RunConfig | None = None
    if origin.run is not None:
        stored, config = _continued(origin.run, origin.branch_step, overrides)
    else:
        config = _new(overrides) if origin.file is None else _repeated(origin.file, overrides)
    step = check_run(config, origin.branch_step if origin.from_step is None else origin.from_step)
    if prints_job:
        print_script(config)
        return
    if stored is not None and origin.branch_step is origin.from_step is None and _is_finished(config, step):
        return
    notes = [] if is_rank() else _notes(origin, stored, config, step)
    if origin.run is None and origin.file is None:
        print_notes(config, overrides)
    if origin.from_step is not None:
        _go_back(config, origin.from_step)
    arguments = [*overrides, *origin.arguments]
    if origin.branch_step is not None:
        config, arguments = _branch(config, origin.branch_step, overrides)
    for note in notes:
        _print_note(note, config.resume)
    _train(config, overrides, arguments)


def _is_finished(config: RunConfig, step: int) -> bool:
    """Return whether the run to resume has ended at its `num_steps`. If so, print how to train it further."""
    from atrium.assemble.checks import is_finished

    if done := step == config.num_steps and is_finished(config):
        sys.stdout.write(f"the run is finished; to train it further, add num_steps=N, greater than {step}\n")
    return done


def _train(config: RunConfig, overrides: Sequence[str], arguments: Sequence[str]) -> None:
    """Print a run's plan and start the run.

    `arguments` are the arguments with which a SLURM job calls `atrium train`.
    """
    _print_plan(config)
    if is_started_here(config):
        train_here(config, overrides)
    else:
        start(config, overrides, arguments)


def _go_back(config: RunConfig, step: int) -> None:
    from atrium.assemble.checks import go_back

    assert config.resume is not None
    if config.branch is not None and step < config.branch.step:
        raise ConfigError(
            f"--from-step must be at least {config.branch.step}, since the run started from that step of "
            f"{config.branch.run}, got {step}; choose a later step"
        )
    if os.environ.get("RANK", "0") != "0":
        return  # rank 0 rewinds the run for all processes that torchrun started
    if (aside := go_back(config.resume, step)) is not None:
        sys.stdout.write(f"rewound to step {step}: later records are kept in {aside}\n")


def _new(overrides: Sequence[str]) -> RunConfig:
    config = compose(overrides)
    if config.resume is not None:
        raise ConfigError(
            f"resume={config.resume} cannot be set like other settings; use --resume {config.resume}"
        )
    from atrium.assemble.choosing import with_split

    return with_split(config, overrides)


def print_notes(config: RunConfig, overrides: Sequence[str]) -> None:
    """Print notes on settings that are valid but unusual."""
    for note in compose_notes(config, overrides):
        sys.stdout.write(f"note: {note}\n")


def _repeated(file: str, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration in `file` for a new run; raise `ConfigError` if it cannot be repeated."""
    if overrides:
        raise ConfigError(
            f"{shown(overrides[0])} cannot be used, since a repeated run keeps its settings; remove the "
            "overrides"
        )
    config = _read_stored(Path(file), f"--from-config {file}").model_copy(update={"resume": None})
    if config.branch is not None:
        raise ConfigError(
            f"--from-config {file}: a run that started from a step of another run cannot be repeated; "
            f"use --resume {config.branch.run}@{config.branch.step} with the same settings"
        )
    return config


def _continued(run: str, step: int | None, overrides: Sequence[str]) -> tuple[RunConfig, RunConfig]:
    """Return a run's stored configuration, and that of its continuation or of its branch from `step`."""
    runs_dir = compose([line for line in overrides if line.startswith("runs_dir=")]).runs_dir
    try:
        folder = find_run(runs_dir, run, last=TRAINED)
    except RunFolderError as error:
        raise RunFolderError(f"resume={run}: {error}") from error
    if not is_rank():  # the launcher of a rank has already recorded the changes
        for line in plugins.note_changes(folder.provenance_file):
            folder.append_log(line)
    stored = _read_stored(folder.config_file, f"resume={run}")
    if step is not None:
        return stored, branch_config(stored, folder, step, overrides)
    return stored, resumed(stored, folder.path, overrides)


def _notes(origin: Origin, stored: RunConfig | None, config: RunConfig, step: int) -> list[str]:
    """Return notes on a replaced `rollout.placement` and on a learning rate schedule changed at `step`."""
    file = Path(origin.file) if origin.file is not None else None
    if config.resume is not None:
        file = RunFolder(Path(config.resume)).config_file
    placement = None if file is None else placement_note(read_object(file)[0])
    schedule = None if stored is None else schedule_note(stored, config, step)
    return [note for note in (placement, schedule) if note is not None]


def _branch(config: RunConfig, step: int, overrides: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """Create the new run of `--resume RUN@STEP`; return its configuration and the flags that resume it."""
    assert config.resume is not None
    begun = begin_branch(config, RunFolder.open(config.resume), step, overrides)
    assert begun.resume is not None
    sys.stdout.write(f"a new run continues from step {step} of {RunFolder(Path(config.resume)).name}\n")
    return begun, ["--resume", begun.resume]


def _read_stored(file: Path, wanted: str) -> RunConfig:
    try:
        return from_json(read_plain(file).decode())
    except ConfigError as error:
        is_imported = read_object(file)[0].get("kind") == IMPORTED
        reason = (
            "another program trained this run, so its settings are unknown; choose another run"
            if is_imported
            else error
        )
        raise RunFolderError(f"{wanted}: the stored settings cannot be used: {reason}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RunFolderError(
            f"{wanted}: {file.name} cannot be read ({reason}); choose another run (`atrium runs` lists "
            "the existing runs)"
        ) from error


def _named(jobs: Sequence[tuple[Sequence[str], RunConfig]]) -> dict[str, dict[str, object]]:
    """Return the configurations of the jobs that have the first job's seed, keyed by job name.

    A job is named after its overrides, without the seed and without overrides that all jobs share.
    """
    shared = set.intersection(*(set(lines) for lines, _ in jobs))
    first = [(lines, config) for lines, config in jobs if config.seed == jobs[0][1].seed]
    return {
        " ".join(
            line for line in lines if line not in shared and not line.startswith("seed=")
        ): config.model_dump(mode="json")
        for lines, config in first
    }


def begin_many(overrides: Sequence[str]) -> int:
    """Train the jobs of a multirun one after the other, and return the highest exit code (0 if none failed).

    With SLURM, all jobs are submitted together. After the last job, the first unexpected exception is raised.
    """
    from atrium.assemble.choosing import with_split

    began = time.time()
    jobs = [(lines, with_split(dated(config, began), lines)) for lines, config in compose_all(overrides)]
    for _, config in jobs:
        check_run(config)
    sys.stdout.writelines(f"note: {line}\n" for line in alike_notes(_named(jobs)))
    if any(config.compute.slurm is not None for _, config in jobs):
        submit([(config, _with_date(lines, config)) for lines, config in jobs])
        return 0
    code, given = 0, sys.argv
    defects: list[Exception] = []
    for number, (lines, config) in enumerate(jobs, start=1):
        sys.stdout.write(f"run {number} of {len(jobs)}: {' '.join(lines)}\n")
        # The run records sys.argv as its command, which must start this job only.
        sys.argv = ["atrium", "train", *_with_date(lines, config), *plugins.flags()]
        try:
            print_notes(config, lines)
            _train(config, lines, lines)
        except Interrupted:
            raise
        except AtriumError as error:
            sys.stderr.write(f"error: {error.line}\n")
            code = max(code, error.exit_code)
        except Exception as defect:  # the other runs do not depend on it
            sys.stderr.write(
                f"run {number} failed: {type(defect).__name__}; the first traceback follows at the end\n"
            )
            defects.append(defect)
        finally:
            sys.argv = given
    if defects:
        raise defects[0]
    return code


def _with_date(lines: Sequence[str], config: RunConfig) -> list[str]:
    return [*lines, f"model.date={config.model.date}"]


def check_run(config: RunConfig, from_step: int | None = None) -> int:
    """Check the machine and the checkpoint of a run, and return the step from which the run continues.

    The step is `from_step` if given, otherwise that of the newest checkpoint. It is 0 for a new run.
    """
    # Imported late: it needs numpy, and most mistakes have been found without it.
    from atrium.assemble.checks import check_checkpoint_model, check_machine, step_to_go_on_from

    step = step_to_go_on_from(config, from_step)
    check_machine(config)
    check_checkpoint_model(config, from_step)
    return step


def train_here(config: RunConfig, overrides: Sequence[str]) -> None:
    """Train in this process, and record `overrides` in the run directory."""
    if config.rollout.placement == "server":
        check_node(config)
    with stopped_at_once(_stopped, END_SIGNALS) as stop_if_asked:
        set_threads(config)
        from atrium.assemble.graders import build_grader
        from atrium.views.terminal import waiting

        with build_grader(config.grader, config.model) as grader:  # its worker starts while torch is loaded
            with waiting("loading torch"), loading():
                # Imported late: torch reads the environment when it is loaded.
                from atrium.assemble.training import run_training

            stop_if_asked()
            run_training(config, grader, overrides)


def begin_evaluation(settings: EvaluationSettings, overrides: Sequence[str], resume: Path | None) -> Path:
    """Check an evaluation and run it, or resume the evaluation in `resume`; return its run directory."""
    from atrium.assemble.checks import check_before_run

    check_before_run(settings.config)
    if resume is None and settings.checkpoint is None:
        print_notes(settings.config, overrides)
    if resume is not None and (note := placement_note(read_object(RunFolder(resume).config_file)[0])):
        _print_note(note, resume)
    set_threads(settings.config)
    with loading():  # imports torch; most mistakes have been found without it
        from atrium.assemble.evaluation import run_evaluation

    return run_evaluation(settings, overrides, resume=resume)


def _print_plan(config: RunConfig) -> None:
    """Print the remaining time of a resumed run, or the predicted memory and time of a new run on a GPU.

    The remaining time is computed from the recorded times of steps. A resumed run without recorded times is
    treated like a new run. Ranks print nothing. SLURM jobs and models of unknown shape have no prediction.
    """
    if is_rank():
        return
    from atrium.assemble.checks import device_bytes, gpu_of
    from atrium.assemble.duration import measured_line, time_lines
    from atrium.assemble.memory import PROMPT_TOKENS, judge, known_shape, plan_notes
    from atrium.planning.document import memory_document
    from atrium.views.terminal import print_document, standard_output

    measured = None
    if config.resume is not None:
        measured = measured_line(RunFolder(Path(config.resume)), config.num_steps)
    shape = known_shape(config)
    if measured is not None:
        sys.stdout.write(f"{measured}\n")
    elif config.compute.device == "cuda" and config.compute.slurm is None and shape is not None:
        found, plan = judge(config, shape, PROMPT_TOKENS, device_bytes(config))
        times = time_lines(found, shape, gpu_of(config))
        print_document(standard_output(), memory_document(plan, plan_notes(found), times))


def _print_note(note: str, folder: Path | str | None) -> None:
    """Print a note; if `folder` is given, also add the note to the log of the run in `folder`."""
    sys.stdout.write(f"note: {note}\n")
    if folder is not None:
        RunFolder(Path(folder)).append_log(f"note: {note}")


def _stopped(number: int) -> Interrupted:
    return Interrupted(f"stopped by {signal.Signals(number).name} before training was set up")


def set_threads(config: RunConfig) -> None:
    """Set the environment variables of OpenMP and of the engine, and print the compute settings."""
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
    """Print which engine is used and why, and set the environment variables that it reads."""
    rollout = config.rollout
    if config.model.kind != "tiny" and not rollout.reads_stored:
        engine, reason = engine_choice(config.model.kind, config.compute.device, this_machine())
        because = reason if engine == rollout.engine else "as configured"
        sys.stdout.write(f"rollout: {rollout.engine}, {because}\n")
    rollout.prepare_environment(config.compute.device, Path(config.runs_dir) / ".cache")
