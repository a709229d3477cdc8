"""Import of files: plans runs from their content, then writes all run directories or none."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium import __version__
from atrium.base.atomic import explained, write_json
from atrium.base.errors import DataError, RunFolderError
from atrium.base.json_lines import encode_line
from atrium.base.nested import mapping_at, put, setting
from atrium.base.recorded import read_object
from atrium.imports.answers import Curve, Source, Stated
from atrium.imports.files import digest, files_of
from atrium.imports.recognize import is_source, read_source
from atrium.imports.spool import Part, RunKey, Spool
from atrium.imports.trainers import printed_in_curve
from atrium.runs.find import list_runs
from atrium.runs.layout import IMPORTED, check_experiment
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, RunStatus
from atrium.runs.summary import summarize
from atrium.stats.estimates import Interval, interval_over_problems, mean_at_k, pass_at_k, sampling_interval

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart:
    """The results of one run on one benchmark at one step.

    `num_correct_P` [P] counts the correct answers among the `num_samples` (K) samples of each problem.
    `printed` is the mean reported by the source, if any.
    """

    part: Part
    benchmark: str
    num_samples: int
    num_correct_P: NDArray[np.int64]
    printed: float | None = None
    most_samples: int | None = None
    """Largest number of samples of a problem in the source, if the numbers differ; K is the smallest."""

    @property
    def mean_at_k(self) -> float:
        """Mean@K over all problems."""
        return float(mean_at_k(self.num_correct_P, self.num_samples).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The content of a run directory to be written. `is_seed_stated` is False if Atrium chose the seed."""

    method: str
    seed: int
    is_seed_stated: bool
    parts: tuple[PlannedPart, ...]
    curve: Curve | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import. `folders` is empty if nothing was written."""

    sources: tuple[Source, ...]
    runs: tuple[PlannedRun, ...]
    folders: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()
    """Names of the runs from an earlier import of the same files with the same options."""


def import_files(
    paths: Sequence[Path],
    experiment: str,
    runs_dir: Path,
    stated: Stated,
    *,
    settings: Mapping[str, str],
    is_dry: bool,
    on_source: Callable[[Source], None],
) -> Imported:
    """Read the files and, unless `is_dry`, write their runs into the experiment.

    If the same files were imported with the same options before, nothing is imported, and `known` of the
    result names the existing runs. `on_source` is called for each source before its rows are read, but only
    once for sources of the same format and mapping. Raises `ConfigError` for an invalid experiment name or
    option, `DataError` for damaged files and duplicates, and `RunFolderError` if the experiment cannot be
    written.
    """
    check_experiment(experiment)
    files = [(file, str(path if path.is_dir() else path.parent)) for path in paths for file in _files(path)]
    digests = {str(file): digest(file) for file, _ in files}
    identity = _identity(sorted(set(digests.values())), stated, settings)
    existing = _imports(runs_dir, experiment)
    if known := [name for name, record in existing.items() if record.get("identity") == identity]:
        return Imported(sources=(), runs=(), known=tuple(known))
    _check_new(existing, digests, experiment)
    _check_different(paths, files, digests)
    with _staging(runs_dir) as staging:
        spool = Spool(path=staging / "rows.sqlite")
        sources = _spooled(spool, files, stated, on_source)
        runs = _planned(spool, sources, runs_dir / experiment, incomplete=stated.incomplete)
        folders: list[Path] = []
        if not is_dry:
            written = [
                _write(spool, run, staging, _settings(run, settings), _record(run, identity, digests), place)
                for place, run in enumerate(runs)
            ]
            spool.close()
            folders = _moved(written, runs_dir / experiment)
        else:
            spool.close()
    return Imported(sources=tuple(sources), runs=tuple(runs), folders=tuple(folders))


def _files(path: Path) -> list[Path]:
    """Return `path` if it is a file, or all files of known formats below it."""
    found = [one for one in files_of(path) if one == path or is_source(one)]
    if not found:
        raise DataError(f"{path} contains no file of a known format; choose another path")
    return found


def _record(run: PlannedRun, identity: str, digests: Mapping[str, str]) -> dict[str, object]:
    """Return the entry `import` of a run's `provenance.json`: the imported files and how they were read."""
    return {
        "atrium": __version__,
        "identity": identity,
        "files": {str(one.path): digests[str(one.path)] for one in run.sources},
        "formats": sorted({source.format for source in run.sources}),
        "mapping": sorted({line for source in run.sources for line in source.mapping}),
        "differences": sorted({line for source in run.sources for line in source.differences}),
        "is_seed_stated": run.is_seed_stated,
    }


def _settings(run: PlannedRun, stated: Mapping[str, str]) -> dict[str, Any]:
    """Return the nested settings of a run; the user's settings override those recorded in its files."""
    found: dict[str, Any] = {}
    recorded = [pair for source in run.sources for pair in source.settings.items()]
    recorded += run.curve.settings.items() if run.curve else ()
    for key, value in [*recorded, *stated.items()]:
        put(found, key, value)
    return found


def _identity(digests: Sequence[str], stated: Stated, settings: Mapping[str, str]) -> str:
    text = json.dumps([digests, asdict(stated), dict(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _imports(runs_dir: Path, experiment: str) -> dict[str, Mapping[str, Any]]:
    """Return the entry `import` from the provenance of each imported run of an experiment, by run name."""
    found = {}
    for folder in list_runs(runs_dir) if runs_dir.is_dir() else []:
        if folder.name.partition("/")[0] == experiment:
            record = mapping_at(read_object(folder.provenance_file)[0], "import")
            if record:
                found[folder.name] = record
    return found


def _check_new(
    existing: Mapping[str, Mapping[str, Any]], digests: Mapping[str, str], experiment: str
) -> None:
    """Raise `DataError` if the new files, compared by digest, include all files of an imported run.

    Sharing some files is allowed: two methods give the same answers before the first update.
    """
    new = set(digests.values())
    for name, record in existing.items():
        known = set(mapping_at(record, "files").values())
        if known and known <= new:
            raise DataError(
                f"{next(iter(digests))} was already imported as {name} with a different mapping; delete "
                f"that run, or choose an --experiment other than {experiment}"
            )


def _check_different(
    paths: Sequence[Path], files: Sequence[tuple[Path, str]], digests: Mapping[str, str]
) -> None:
    """Raise `DataError` if two of `paths` have the same content."""
    found: dict[tuple[str, ...], Path] = {}
    for path in paths:
        own = sorted(digests[str(file)] for file, _ in files if file == path or path in file.parents)
        if (other := found.setdefault(tuple(own), path)) is not path:
            raise DataError(f"{other} and {path} have the same content; give each source only once")


@contextmanager
def _staging(runs_dir: Path) -> Iterator[Path]:
    """Yield a hidden directory in `runs_dir`, which is deleted on exit.

    A missing `runs_dir` is created, and deleted on exit if it is empty.
    """
    is_new = not runs_dir.exists()
    with explained("write into", runs_dir):
        runs_dir.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".import-", dir=runs_dir))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(runs_dir.iterdir()):
            runs_dir.rmdir()


def _spooled(
    spool: Spool, files: Sequence[tuple[Path, str]], stated: Stated, on_source: Callable[[Source], None]
) -> list[Source]:
    sources: list[Source] = []
    said: set[tuple[str, tuple[str, ...]]] = set()
    for number, (path, unit) in enumerate(files):
        source = read_source(path, stated)
        if (source.format, source.mapping) not in said:
            on_source(source)
            said.add((source.format, source.mapping))
        for answer in source.answers:
            spool.add(answer, file=number, unit=unit)
        for curve in source.curves:
            spool.add_curve(curve, file=number, unit=unit)
        sources.append(source)
    if not spool.parts and not spool.curves:
        raise DataError("the sources contain neither rows nor curves; choose other files")
    return sources


def _planned(spool: Spool, sources: Sequence[Source], parent: Path, *, incomplete: bool) -> list[PlannedRun]:
    """Return the runs to write. A run without a stated seed gets the smallest seed that no run uses.

    Raises `DataError` if the experiment at `parent` already has a run of the same method and seed.
    """
    runs = spool.runs()
    taken = {(run.method, run.seed) for run in runs}
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        config, _ = read_object(RunFolder(folder).config_file)
        method, seed = setting(config, "algorithm.name"), config.get("seed")
        if (method, seed) in taken and seed is not None:
            raise DataError(
                f"{parent.name} already contains {folder.name}, a run of {method} with seed {seed}; choose "
                "another --experiment"
            )
        taken.add((str(method), seed if isinstance(seed, int) else None))
    planned = []
    for run in runs:
        seed = run.seed
        if seed is None:
            # Seeds of all methods, since runs of different methods with equal seeds are compared as pairs.
            used = {number for _, number in taken}
            seed = next(number for number in range(len(used) + 1) if number not in used)
            taken.add((run.method, seed))
        planned.append(
            PlannedRun(
                method=run.method,
                seed=seed,
                is_seed_stated=run.seed is not None,
                parts=_planned_parts(spool, run, sources, incomplete=incomplete),
                curve=spool.curves.get(run),
                sources=tuple(sources[number] for number in spool.files_of(run)),
            )
        )
    return planned


def _planned_parts(
    spool: Spool, run: RunKey, sources: Sequence[Source], *, incomplete: bool
) -> tuple[PlannedPart, ...]:
    parts = []
    names: dict[str, str] = {}
    for part in spool.parts.values():
        if part.run == run:
            name = folder_name(part.benchmark, "benchmark")
            if (other := names.setdefault(name, part.benchmark)) != part.benchmark:
                raise DataError(
                    f"the benchmarks {other} and {part.benchmark} of {run.method} would both be stored as "
                    f"{name}; rename one of them"
                )
            counts, num_samples = spool.num_correct(part, incomplete=incomplete)
            files = [sources[number] for number in spool.files[part]]
            printed = files[0].printed.get(part.benchmark) if len(files) == 1 else None
            if printed is None and run in spool.curves:
                printed = printed_in_curve(spool.curves[run], part.benchmark, part.step, num_samples)
            parts.append(
                PlannedPart(
                    part=part,
                    benchmark=name,
                    num_samples=num_samples,
                    num_correct_P=counts,
                    printed=printed,
                    most_samples=spool.cut[part][1] if part in spool.cut else None,
                )
            )
    return tuple(parts)


def folder_name(text: str, otherwise: str) -> str:
    """Convert text to a directory name of at most 60 safe characters; return `otherwise` if none are left."""
    return _NOT_IN_NAMES.sub("_", text).strip("._+=-")[:60] or otherwise


def _write(
    spool: Spool,
    run: PlannedRun,
    staging: Path,
    settings: Mapping[str, Any],
    record: Mapping[str, object],
    place: int,
) -> Path:
    """Write one run directory below `staging`; return its path. Start times increase with `place`."""
    now = time.time() + 1e-3 * place  # start times keep the order of the sources
    start = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    label = folder_name(run.method, "method")
    folder = RunFolder(staging / f"{start}-{label}-s{run.seed}-{secrets.token_hex(2)}")
    last = max([part.part.step for part in run.parts] + list(run.curve.steps if run.curve else ()), default=0)
    with explained("write", folder.path):
        folder.path.mkdir()
        algorithm = {**settings.get("algorithm", {}), "name": run.method}
        folder.write_config({**settings, "kind": IMPORTED, "seed": run.seed, "algorithm": algorithm})
        folder.write_method({"key": {IMPORTED: run.method}})
        folder.write_provenance({"import": record})
        _write_content(spool, run, folder, now)
        status = RunStatus(state=RunState.FINISHED, step=last, num_steps=last, started=now, updated=now)
        write_json(folder.status_file, asdict(status))
        write_json(folder.summary_file, summarize(folder))
    return folder.path


def _write_content(spool: Spool, run: PlannedRun, folder: RunFolder, now: float) -> None:
    """Write the samples and scores of each evaluation, and the curves."""
    from atrium.runs.sample_files import write_evaluation_rows  # pyarrow costs 0.3 s

    with folder.evaluations_file.open("wb") as lines:
        for part in run.parts:
            step, name = part.part.step, part.benchmark
            write_evaluation_rows(folder.evaluation_path(name, step), spool.rows(part.part))
            record = {"step": step, "time": now, "benchmark": name, "results": results(part)}
            lines.write(encode_line(record))
    if run.curve is not None:
        with folder.metrics_file.open("wb") as lines:
            for step, metrics in sorted(run.curve.steps.items()):
                lines.write(encode_line({"step": step, **metrics}))


def results(part: PlannedPart) -> dict[str, object]:
    """Return an evaluation's `results`: those that counts of correct answers determine, and `printed`."""
    num_correct_P, k = part.num_correct_P, part.num_samples
    mean_P, passed_P = mean_at_k(num_correct_P, k), pass_at_k(num_correct_P, k)[:, -1]
    over_passed = {"over_problems": _ends(interval_over_problems(passed_P)), "sampling": None}
    return {
        "k": k,
        "mean_at_k": float(mean_P.mean()),
        "pass_at_k": float(passed_P.mean()),
        "interval_over_problems": _ends(interval_over_problems(mean_P)),
        "interval_sampling": _ends(sampling_interval(num_correct_P, k)),
        "num_problems": len(num_correct_P),
        "num_samples": len(num_correct_P) * k,
        "pass_at": {str(k): float(passed_P.mean())},
        "pass_at_intervals": {str(k): over_passed},
        "printed": part.printed,
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _moved(written: Sequence[Path], parent: Path) -> list[Path]:
    """Move all directories into `parent`, or none if one fails; return their new paths."""
    moved: list[Path] = []
    is_new = not parent.exists()
    try:
        with explained("write into", parent):
            parent.mkdir(exist_ok=True)
            for path in written:
                path.rename(parent / path.name)
                moved.append(parent / path.name)
    except RunFolderError:
        for path in moved:
            shutil.rmtree(path, ignore_errors=True)
        if is_new and parent.exists():
            shutil.rmtree(parent, ignore_errors=True)
        raise
    return moved
