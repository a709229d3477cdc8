"""Published and local problem sets: fetched, read, and recorded with their origin.

The problems are distinct and in the order of the files. Whether the grader can read their reference answers,
and which problems are used for training, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from atrium.base.records import Problem
from atrium.base.rows import read_rows
from atrium.data.fields import BoxReader
from atrium.data.problem_files import Reading
from atrium.data.settings import ProblemFiles
from atrium.data.sources import Log, locate_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of problems and the fate of their rows; part of a run's provenance.

    `num_unreadable` counts references that the grader did not find equal to the same answer in another form;
    `unreadable` holds the ids of their problems, or None if nothing was checked. `num_unchecked` counts those
    whose check timed out, and `num_overlapping` training problems that a benchmark also has; `overlaps` lists
    them with the benchmark's problem and the shared words (the first 1,000).
    """

    source: str
    revision: str | None = None
    files: tuple[str, ...] = ()
    num_rows: int = 0
    num_chosen: int = 0
    num_incomplete: int = 0
    num_repeated: int = 0
    num_instructions: int = 0
    num_problems: int = 0
    num_unreadable: int = 0
    num_unchecked: int = 0
    unreadable: tuple[str, ...] | None = None
    num_overlapping: int = 0
    overlaps: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    def as_record(self) -> dict[str, object]:
        """Return the record as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """Distinct problems in the order of the files, and their origin."""

    name: str
    problems: tuple[Problem, ...]
    origin: Origin


def read_problem_set(wanted: ProblemFiles, *, cache_dir: Path, read_box: BoxReader, log: Log) -> ProblemSet:
    """Fetch the files, and read their problems.

    `read_box` returns the content of a text's last box. Raises `DataError` if the data are missing or do not
    match their declaration.
    """
    located = locate_files(
        wanted.source,
        wanted.files,
        revision=wanted.revision,
        cache_dir=cache_dir,
        log=log,
    )
    reading = Reading(wanted, read_box)
    for path in located.paths:
        for row in read_rows(path, wanted.fields.columns | wanted.where.keys()):
            reading.add(row)
    reading.check(located.names)
    return ProblemSet(
        name=wanted.name,
        problems=reading.problems(),
        origin=Origin(
            source=wanted.source,
            revision=located.revision,
            files=located.names,
            num_rows=reading.num_rows,
            num_chosen=reading.num_chosen,
            num_incomplete=sum(reading.incomplete.values()),
            num_repeated=reading.num_repeated,
            num_instructions=reading.num_instructions,
            num_problems=len(reading.found),
            warnings=tuple(reading.warnings()),
        ),
    )
