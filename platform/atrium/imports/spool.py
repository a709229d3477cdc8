"""A temporary database that groups the rows of source files into runs.

The files may have any size, and their rows may be in any order. Rows are read back by run, benchmark, step
and problem. This module also detects duplicate rows and unequal numbers of samples. If no seeds are stated,
the files of one directory count as one seed, unless they answer the same benchmark at the same step.

Axes: P problems.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atrium.base.errors import DataError
from atrium.base.texts import TEXT_ID, encodable, text_key
from atrium.imports.answers import Answer, Curve

_TABLES = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768; PRAGMA temp_store=FILE;
CREATE TABLE problems (id INTEGER PRIMARY KEY, part INTEGER, name TEXT, question TEXT, gold TEXT,
    file INTEGER, num INTEGER, UNIQUE (part, name));
CREATE TABLE samples (id INTEGER PRIMARY KEY, problem INTEGER, sample TEXT, correct INTEGER, text TEXT,
    extracted TEXT, num_tokens INTEGER, truncated INTEGER, UNIQUE (problem, sample));
"""
_KEEP_FIRST = """
DELETE FROM samples WHERE id IN (SELECT id FROM (
    SELECT s.id, ROW_NUMBER() OVER (PARTITION BY s.problem ORDER BY s.id) AS place
    FROM problems p JOIN samples s ON s.problem = p.id WHERE p.part = ?) WHERE place > ?)
"""
_MAX_PARTS = 20_000
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class RunKey:
    """The identity of a run: its method and seed.

    If no seed is stated, `unit` identifies the run instead. Its text is the directory of the run's files,
    followed by the key of the run's curve if it has one. Its number distinguishes runs of the same method and
    text.
    """

    method: str
    seed: int | None
    unit: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run's answers to one benchmark at one step. `number` identifies the part in the database."""

    number: int
    run: RunKey
    benchmark: str
    step: int


@dataclass(slots=True)
class _Problem:
    """A problem of a part: its text, the first file that contains it, and its number of samples so far."""

    part: int
    name: str
    number: int
    question: str
    file: int
    num: int


@dataclass(kw_only=True, eq=False)
class Spool:
    """The rows and curves of an import. The rows are in an SQLite database at `path`."""

    path: Path
    parts: dict[tuple[RunKey, str, int], Part] = field(default_factory=dict)
    curves: dict[RunKey, Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._database = sqlite3.connect(self.path, isolation_level=None)
        self._database.executescript(_TABLES)
        self._database.execute("BEGIN")
        self._latest: _Problem | None = None
        self.files: dict[Part, set[int]] = {}
        """Numbers of the files that contain answers of a part."""
        self.cut: dict[Part, tuple[int, int]] = {}
        """Smallest and largest number of samples per problem, if they differ; the smallest is kept."""
        self.curve_files: dict[RunKey, set[int]] = {}
        self._known: dict[tuple[int, str, int | None, str, int], Part] = {}

    def add(self, answer: Answer, *, file: int, unit: str) -> None:
        """Add an answer from file number `file` in the directory `unit`.

        Raises `DataError` if the answer is a duplicate or contradicts an earlier one.
        """
        part = self._part(answer, file, unit)
        name = answer.problem or f"{TEXT_ID}{text_key(answer.question)}"
        problem = self._problem(part, name, answer, file)
        if problem.question != encodable(answer.question):
            raise DataError(
                f"{answer.place}: the text of problem {name[:60]!r} differs from its text in an earlier row; "
                "use --map problem=COLUMN with a column of unique ids"
            )
        if answer.sample is None and problem.file != file:
            raise DataError(
                f"{answer.place}: another file also contains problem {name[:60]!r} for {_words(part)}; "
                "use --map with a column that distinguishes the files"
            )
        sample = encodable(answer.sample) or str(problem.num)
        row = (problem.number, sample, answer.is_correct, encodable(answer.text),
               encodable(answer.extracted), answer.num_tokens, answer.is_truncated)  # fmt: skip
        try:
            self._database.execute(
                "INSERT INTO samples (problem, sample, correct, text, extracted, num_tokens, truncated) "
                "VALUES (?,?,?,?,?,?,?)",
                row,
            )
        except sqlite3.IntegrityError:
            raise DataError(
                f"{answer.place}: sample {sample} of problem {name[:60]!r} appears twice for "
                f"{_words(part)}; remove the duplicate, or use --map with the columns that distinguish "
                "the rows"
            ) from None
        problem.num += 1

    def add_curve(self, curve: Curve, *, file: int, unit: str) -> None:
        """Add the curves of a run, or merge them with existing curves of the same run.

        Curves without a stated seed count as different seeds if they have the same method and directory
        (`unit`) but disagree. Raises `DataError` if curves of the same method and stated seed disagree.
        `file` is the number of the file.
        """
        number, clash = 0, ""
        while True:
            own = (f"{unit}/{curve.key}" if curve.key else unit, number)
            run = RunKey(curve.method, curve.seed, ("", 0) if curve.seed is not None else own)
            steps = self.curves[run].steps if run in self.curves else {}
            clash = _disagreement(steps, curve.steps)
            if not clash or curve.seed is not None:
                break
            number += 1
        if clash:
            raise DataError(
                f"two files give different values of {clash} for {curve.method}, seed {curve.seed}; "
                "import only one of them"
            )
        joined = {step: {**values, **steps.get(step, {})} for step, values in curve.steps.items()}
        self.curves[run] = replace(curve, steps={**steps, **joined})
        self.curve_files.setdefault(run, set()).add(file)

    def num_correct(self, part: Part, *, incomplete: bool) -> tuple[NDArray[np.int64], int]:
        """Return the number of correct answers to each problem [P], and the number of samples K per problem.

        If the numbers of samples differ, K is the smallest. If `incomplete` is set, the first K samples of
        each problem are then kept and the others deleted; otherwise, `DataError` is raised.
        """
        self._save_latest()
        fewest, most = (
            self._database.execute(
                f"SELECT num, name FROM problems WHERE part = ? ORDER BY num {order}, id LIMIT 1",
                (part.number,),
            ).fetchone()
            for order in ("ASC", "DESC")
        )
        if fewest[0] != most[0] and not incomplete:
            raise DataError(
                f"{_words(part)}: problem {most[1][:60]!r} has {most[0]} answers, but "
                f"{fewest[1][:60]!r} has {fewest[0]}; use --incomplete to limit each problem to {fewest[0]}"
            )
        if fewest[0] != most[0]:
            self._database.execute(_KEEP_FIRST, (part.number, fewest[0]))
            self.cut[part] = (fewest[0], most[0])
        counts = self._database.execute(
            "SELECT SUM(s.correct) FROM problems p JOIN samples s ON s.problem = p.id WHERE p.part = ? "
            "GROUP BY p.id ORDER BY p.id",
            (part.number,),
        )
        return np.fromiter((count for (count,) in counts), dtype=np.int64), fewest[0]

    def rows(self, part: Part) -> Iterator[dict[str, object]]:
        """Yield the samples of a part, grouped by problem, as rows of `sample_files.EVALUATION_SCHEMA`."""
        problems = self._database.execute(
            "SELECT id, name, question, gold FROM problems WHERE part = ? ORDER BY id", (part.number,)
        )
        for number, name, question, gold in problems:
            samples = self._database.execute(
                "SELECT correct, text, extracted, num_tokens, truncated FROM samples WHERE problem = ? "
                "ORDER BY id",
                (number,),
            )
            for index, (correct, text, extracted, num_tokens, truncated) in enumerate(samples):
                yield {
                    "step": part.step,
                    "problem_id": name,
                    "question": question,
                    "gold": gold,
                    "metadata": "{}",
                    "sample_index": index,
                    "text": text,
                    "verdict": "correct" if correct else "incorrect",
                    "reason": "imported",
                    "extracted": extracted,
                    "is_correct": bool(correct),
                    "finish_reason": None if truncated is None else "length" if truncated else "stop",
                    "num_tokens": num_tokens,
                }

    def files_of(self, run: RunKey) -> list[int]:
        """Return the sorted numbers of the files that contain answers or curves of a run."""
        parts = [self.files[part] for part in self.parts.values() if part.run == run]
        return sorted(set().union(*parts, self.curve_files.get(run, set())))

    def runs(self) -> list[RunKey]:
        """Return all runs in order of appearance, with runs that have only curves last."""
        return list(dict.fromkeys([*(part.run for part in self.parts.values()), *self.curves]))

    def close(self) -> None:
        """Close the database without deleting its file."""
        self._database.close()

    def _problem(self, part: Part, name: str, answer: Answer, file: int) -> _Problem:
        """Return the problem of a row. The latest is cached, since a problem's rows are often adjacent."""
        if self._latest is not None and (self._latest.part, self._latest.name) == (part.number, name):
            return self._latest
        self._save_latest()
        insert = "INSERT OR IGNORE INTO problems (part, name, question, gold, file, num) VALUES (?,?,?,?,?,0)"
        values = (part.number, encodable(name), encodable(answer.question), encodable(answer.gold), file)
        self._database.execute(insert, values)
        find = "SELECT id, question, file, num FROM problems WHERE part = ? AND name = ?"
        self._latest = _Problem(part.number, name, *self._database.execute(find, values[:2]).fetchone())
        return self._latest

    def _save_latest(self) -> None:
        if self._latest is not None:
            update = "UPDATE problems SET num = ? WHERE id = ?"
            self._database.execute(update, (self._latest.num, self._latest.number))
            self._latest = None

    def _part(self, answer: Answer, file: int, unit: str) -> Part:
        key = (file, answer.method, answer.seed, answer.benchmark, answer.step)
        if (known := self._known.get(key)) is not None:
            return known
        for name, what in ((answer.method, "method"), (answer.benchmark, "benchmark")):
            if len(name) > _MAX_NAME or not name.isprintable():
                raise DataError(
                    f"{answer.place}: the {what} must have at most {_MAX_NAME} characters, all of them "
                    f"printable, got {name[:40]!r}{'...' if len(name) > 40 else ''}"
                )
        run = (
            RunKey(answer.method, answer.seed) if answer.seed is not None else self._free(answer, file, unit)
        )
        part = self.parts.get((run, answer.benchmark, answer.step))
        if part is None:
            if len(self.parts) == _MAX_PARTS:
                raise DataError(
                    f"{answer.place}: there are more than {_MAX_PARTS:,} combinations of run, benchmark "
                    "and step; check the columns given by --map"
                )
            part = Part(number=len(self.parts), run=run, benchmark=answer.benchmark, step=answer.step)
            self.parts[run, answer.benchmark, answer.step] = part
        self.files.setdefault(part, set()).add(file)
        self._known[key] = part
        return part

    def _free(self, answer: Answer, file: int, unit: str) -> RunKey:
        """Return the run that an answer without a seed belongs to.

        This is the first run of the answer's method and directory (`unit`) in which no other file has answers
        to the same benchmark at the same step.
        """
        number = 0
        while True:
            run = RunKey(answer.method, None, (unit, number))
            part = self.parts.get((run, answer.benchmark, answer.step))
            if part is None or self.files[part] == {file}:
                return run
            number += 1


def _disagreement(known: Mapping[int, Mapping[str, float]], new: Mapping[int, Mapping[str, float]]) -> str:
    """Return a metric and step at which two curves differ by more than rounding, as `<metric> at step <n>`.

    Returns an empty string if the curves agree wherever both have values.
    """
    for step in known.keys() & new.keys():
        for name in known[step].keys() & new[step].keys():
            if not math.isclose(known[step][name], new[step][name], rel_tol=1e-4, abs_tol=1e-6):
                return f"{name} at step {step}"
    return ""


def _words(part: Part) -> str:
    seed = "" if part.run.seed is None else f", seed {part.run.seed}"
    step = f" at step {part.step}" if part.step else ""
    return f"method {part.run.method}{seed}, benchmark {part.benchmark}{step}"
