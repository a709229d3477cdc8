"""Reading of published and local problem sets, with a record of their origin.

The problems are distinct and in the order of the files. Other modules check whether the grader can read the
reference answers, and decide which problems are used for training.
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
    """The origin of a problem set, and counts of its kept and dropped rows; part of a run's provenance.

    `num_unreadable` counts reference answers that the grader cannot read, which means that it would reject an
    equal answer in another notation. `unreadable` lists the ids of the problems with these answers, or is
    None if nothing was checked. `num_unchecked` counts reference answers whose check timed out.
    `num_overlapping` counts problems that were dropped because they repeat a benchmark problem. `overlaps`
    lists the first 1,000 of them, each as a tuple of its id, the benchmark problem (`benchmark/id`), and the
    words that the two share.
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
        """Return the fields as a dictionary of plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """A named set of distinct problems in the order of the files, and their origin."""

    name: str
    problems: tuple[Problem, ...]
    origin: Origin


def read_problem_set(wanted: ProblemFiles, *, cache_dir: Path, read_box: BoxReader, log: Log) -> ProblemSet:
    """Download the files of a problem set if necessary, and read their problems.

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
