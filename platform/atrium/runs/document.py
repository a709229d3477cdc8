"""The documents of a run: the summary at the end of training, and the page that `atrium show` displays."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

import numpy as np

from atrium.base.errors import TrainingDivergedError
from atrium.base.metrics import (
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    ENTROPY,
    GRAD_NORM,
    KL_K3,
    LENGTH_MEAN,
    NUM_TOKENS,
    OUTSIDE_HIGH_FRAC,
    OUTSIDE_LOW_FRAC,
    REWARD,
    STEP_S,
    TRUNCATED_FRAC,
)
from atrium.base.nested import flattened, mapping_at, setting
from atrium.base.plain_files import read_plain
from atrium.base.recorded import as_integer, read_object
from atrium.document.document import Document, Passage, Section, Sentence, plain_table
from atrium.document.formatting import age, counted, duration, number, share
from atrium.planning.sides import Sides, sides_of
from atrium.runs.evaluation_document import evaluation_sections, evaluation_tables, first_and_last_tables
from atrium.runs.find import name_to_type
from atrium.runs.health import course_table, machine_table, with_rows
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import (
    MetricTable,
    RunOverview,
    read_findings,
    read_metrics,
    read_overview,
    read_steps,
)
from atrium.runs.run_folder import RunFolder
from atrium.runs.samples_document import before_and_after
from atrium.runs.status import RunState

_MAIN_CURVES = (REWARD, ENTROPY, LENGTH_MEAN)
_CURVES = (
    *_MAIN_CURVES,
    TRUNCATED_FRAC,
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    OUTSIDE_HIGH_FRAC,
    OUTSIDE_LOW_FRAC,
    KL_K3,
    GRAD_NORM,
    STEP_S,
)
_UNLISTED = ("runs_dir", "experiment_name", "resume", "branch", "compute", "kind", "not_read")
"""Sections that the list of settings omits: location, machine, and settings that an evaluation ignores."""


def summary_document(folder: RunFolder) -> Document:
    """Return a document with a run's results: scores, curves, files, and suggested commands.

    Raises `OSError` if a file exists but cannot be read.
    """
    run, metrics = read_overview(folder), read_metrics(folder)
    # The command itself reports that a run was interrupted.
    error = run.status.error if run.state is not RunState.INTERRUPTED else None
    return Document(
        key=f"summary/{folder.name}",
        title=folder.name,
        alerts=(Sentence(f"error: {error}", "warning"),) if error else (),
        answer=(Sentence(_heading(run, metrics)),),
        sections=(
            Section(
                title="Results",
                tables=(
                    *first_and_last_tables(folder),
                    *with_rows(course_table(metrics.columns, _MAIN_CURVES)),
                ),
                passages=(Passage("\n".join([*_places(run), "", *_next_commands(run)])),),
            ),
        ),
        # Notes are at the end, where users look first.
        notes=tuple(Sentence(found.text, "warning") for found in read_findings(folder)),
    )


def run_document(folder: RunFolder, defaults: Mapping[str, object] | str, num_samples: int) -> Document:
    """Return the document of a run for `atrium show`: settings, curves, scores and samples.

    The document contains samples of `num_samples` problems, and the settings that differ from `defaults`. If
    the defaults are unknown, `defaults` is a string with the reason, and the document lists the overrides
    from the command line instead. Raises `OSError` if a file exists but cannot be read.
    """
    run, metrics = read_overview(folder), read_metrics(folder)
    findings = read_findings(folder, is_over=not run.state.is_live)
    problems = (*run.problems, *([run.status.error] if run.status.error else []))
    return Document(
        key=f"run/{folder.name}",
        title=folder.name,
        alerts=tuple(Sentence(text, "warning") for text in (*problems, *(found.text for found in findings))),
        answer=(Sentence(_heading(run, metrics)),),
        sections=(
            Section(title="", sentences=tuple(Sentence(text, "muted") for text in _origin(run))),
            *([_settings_section(run, defaults)] if run.config else []),
            Section(
                title="Curves",
                tables=with_rows(course_table(metrics.columns, _CURVES), machine_table(folder)),
            ),
            *_sides_sections(run),
            *(
                evaluation_sections(folder)
                if run.config.get("kind") == "evaluation"
                else [Section(title="", tables=tuple(evaluation_tables(folder)))]
            ),
            Section(title="Samples", passages=tuple(before_and_after(folder, num_samples))),
        ),
    )


def _heading(run: RunOverview, metrics: MetricTable) -> str:
    """Return one line with the run's state, name, steps, duration and sampled tokens.

    The line of an evaluation has the number of evaluated problems instead of steps and tokens. The line of an
    imported run has only its name and its last step.
    """
    status = run.status
    if run.config.get("kind") == IMPORTED:
        return f"{IMPORTED}  {run.folder.name}" + (f"  step {status.step}" if status.step else "")
    if run.config.get("kind") == "evaluation":
        solved = f"{status.step} of {counted(status.num_steps, 'problem')}"
        return f"{run.state}  {run.folder.name}  {solved}  {duration(status.wall_s)}"
    num_tokens = np.nansum(metrics.columns.get(NUM_TOKENS.name, np.zeros(0)))
    return (
        f"{run.state}  {run.folder.name}  step {status.step} of {status.num_steps}  "
        f"{duration(status.wall_s)}  {num_tokens:,.0f} tokens sampled"
    )


def _origin(run: RunOverview) -> list[str]:
    """Return lines about the run's start (time, host, commit), and the run from which it was branched.

    For an imported run, the lines name the imported files and the time of the import instead.
    """
    lines, status = [], run.status
    provenance, _ = read_object(run.folder.provenance_file)
    if record := mapping_at(provenance, "import"):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.started))
        return [f"imported {when} from {path}" for path in mapping_at(record, "files")]
    if status.started:
        passed = age(time.time() - status.started)
        ago = passed if passed == "just now" else f"{passed} ago"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.started))
        commit = setting(provenance, "code.commit")
        dirty = " with changes" if setting(provenance, "code.is_dirty") else ""
        code = f", commit {str(commit)[:10]}{dirty}" if commit else ""
        lines.append(f"started {when} ({ago}) on {status.host or 'an unknown host'}{code}")
    if (step := setting(run.config, "branch.step")) is not None:
        lines.append(f"started from step {step} of {setting(run.config, 'branch.run')}")
    return lines


def _settings_section(run: RunOverview, defaults: Mapping[str, object] | str) -> Section:
    """Return a section with the settings that differ from `defaults`, or with the command line's overrides.

    If `defaults` is a string, it states why the defaults are unknown, and the section lists the overrides. If
    `defaults` is a mapping and the run was imported, the section lists all recorded settings instead.
    """
    if isinstance(defaults, str):
        try:
            typed = read_plain(run.folder.overrides_file).decode("utf-8", "replace")
        except FileNotFoundError:
            typed = ""
        return Section(title="Settings", passages=(Passage(typed.rstrip(), f"typed settings ({defaults})"),))
    is_imported = run.config.get("kind") == IMPORTED
    ours, theirs = flattened(run.config), {} if is_imported else flattened(defaults)
    rows = [
        (key, _shown(value), _shown(theirs[key]) if key in theirs else "not in the defaults")
        for key, value in ours.items()
        if key.partition(".")[0] not in _UNLISTED and theirs.get(key) != value
    ]
    titles = ("setting", "value") if is_imported else ("setting", "value", "default")
    table = plain_table(
        "recorded settings" if is_imported else "settings that differ from the defaults",
        titles,
        [row[: len(titles)] for row in rows],
        "" if rows else "none",
        is_text=True,
    )
    return Section(title="Settings", tables=(table,))


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


def _sides_sections(run: RunOverview) -> list[Section]:
    """Return a list with one section: the times of sampling and training, and the effect of overlapping them.

    The list is empty for runs without these times, and for runs on stored completions.
    """

    def value(key: str, least: int) -> int:
        return max(least, as_integer(setting(run.config, key)) or least)

    if setting(run.config, "rollout.stored_frac") is not None:
        return []
    is_inside = setting(run.config, "rollout.placement") in (None, "inside")
    num_trainers = value("compute.num_processes", 1) * value("compute.num_nodes", 1)
    lag = value("rollout.lag", 0)
    urls = setting(run.config, "rollout.servers")
    num_urls = len(urls) if isinstance(urls, list) else 0
    num_engines = max(num_urls, value("rollout.num_engines", 1), value("rollout.num_servers", 1))
    sides = sides_of(
        [metrics for _, metrics in read_steps(run.folder)],
        num_engines=num_trainers if is_inside else num_engines,
        num_trainers=num_trainers,
        overlaps=lag > 0 and not is_inside,
    )
    if sides is None:
        return []
    missing = [*(["rollout.lag=1"] if lag == 0 else []), *(["rollout.placement=server"] if is_inside else [])]
    title = f"sampling and training (medians of {counted(sides.num_steps, 'step')})"
    return [Section(title=title, sentences=tuple(map(Sentence, _sides_lines(sides, missing))))]


def _sides_lines(sides: Sides, missing: list[str]) -> list[str]:
    """Return lines about the duration of a step and the effect of overlapping sampling and training.

    The lines state the actual and the minimum duration of a step, and the ratio of devices at which sampling
    and training take equally long. `missing` lists the overrides that would make sampling and training
    overlap. It is empty if they already overlap.
    """
    engines, trainers = counted(sides.num_engines, "engine"), counted(sides.num_trainers, "trainer")
    least, times = _s(sides.bound_s), number(sides.step_s / sides.bound_s)
    if missing:
        how = f"each on its own devices ({' '.join(missing)})"
        overlap = f"both at once, {how}: at least {least}, {times} times as fast"
    else:
        # The medians of the parts may add up to more than the median of the whole step.
        reached = share(min(1.0, sides.bound_s / sides.step_s))
        overlap = f"both at once: at least {least}, of which {reached} is reached"
    for_engines, for_trainers = sides.balance
    wanted = max(1, round(sides.engines_per_trainer * sides.num_trainers))
    return [
        f"a step takes {_s(sides.step_s)}: sampling {_s(sides.sampling_s)} on {engines}, training "
        f"{_s(sides.training_s)} on {trainers}, neither {_s(sides.rest_s)}",
        overlap,
        f"equally long with {for_engines} to {for_trainers} devices, sampling to training: at least "
        f"{_s(sides.bound_with(wanted))} with {counted(wanted, 'engine')}, if sampling scales with them",
    ]


def _s(seconds: float) -> str:
    return f"{number(seconds)} s"


def _places(run: RunOverview) -> list[str]:
    """Return lines with the paths of the run directory, its figures and its last checkpoint."""
    curves = run.folder.figures_dir / "curves.png"
    steps = run.folder.checkpoint_steps()
    return [
        f"record      {run.folder.path}",
        *([f"figures     {curves}"] if curves.is_file() else []),
        *([f"checkpoint  {run.folder.checkpoint_path(steps[-1])}"] if steps else []),
    ]


def _next_commands(run: RunOverview) -> list[str]:
    """Return lines of suggested commands, such as to resume or export the run, each with its effect."""
    name = shlex.quote(name_to_type(run.folder))
    commands = []
    steps = run.folder.checkpoint_steps()
    may_resume = run.state not in (RunState.FINISHED, RunState.FAILED_START)
    if may_resume and run.status.cause == TrainingDivergedError.cause:  # it would diverge again
        may_resume = False
        if earlier := [step for step in steps if step < run.status.step] or steps[:-1]:
            lower = f"atrium train --resume {name}@{earlier[-1]} optimizer.learning_rate=LR"
            commands.append((lower, f"a new run from step {earlier[-1]}, with a lower learning rate"))
    if may_resume:
        meaning = f"continue after step {steps[-1]}" if steps else "start again from the first step"
        commands.append((f"atrium train --resume {name}", meaning))
    commands.append((f"atrium show {name}", "settings, curves, rollouts"))
    if steps:
        commands.append((f"atrium export {name}", "the policy as a transformers folder"))
        if run.state is RunState.FINISHED:
            more = max(2 * run.status.num_steps, 1)
            commands.append((f"atrium train --resume {name} num_steps={more}", "train on"))
    return [
        f"{'' if place else 'next':<12}{command}  # {meaning}"
        for place, (command, meaning) in enumerate(commands)
    ]
