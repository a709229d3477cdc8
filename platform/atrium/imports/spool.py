"""A database of rows on disk, so that a file of any size and order becomes runs in constant memory.

Rows arrive in the source's order and leave by run, benchmark, step and problem. Duplicates and unequal
numbers of samples are found here. Files of one directory count as one seed where they state none, unless they
answer the same benchmark at the same step.

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
    """A run: a method and a stated seed, or the `unit`-th seed that a directory or file stands for."""

    method: str
    seed: int | None
    unit: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run's answers to one benchmark at one step. `number` finds them in the database."""

    number: int
    run: RunKey
    benchmark: str
    step: int


@dataclass(slots=True)
class _Problem:
    """A problem of a part: its text, the file that first had it, and the number of its samples so far."""

    part: int
    name: str
    number: int
    question: str
    file: int
    num: int


@dataclass(kw_only=True, eq=False)
class Spool:
    """The rows of an import, in the database file at `path`."""

    path: Path
    parts: dict[tuple[RunKey, str, int], Part] = field(default_factory=dict)
    curves: dict[RunKey, Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._database = sqlite3.connect(self.path, isolation_level=None)
        self._database.executescript(_TABLES)
        self._database.execute("BEGIN")
        self._latest: _Problem | None = None
        self.files: dict[Part, set[int]] = {}
        """The numbers of the files that gave a part."""
        self.cut: dict[Part, tuple[int, int]] = {}
        """Smallest and largest number of samples per problem, if they differ; all keep the smallest."""
        self.curve_files: dict[RunKey, set[int]] = {}
        self._known: dict[tuple[int, str, int | None, str, int], Part] = {}

    def add(self, answer: Answer, *, file: int, unit: str) -> None:
        """Take in a row of the `file`-th file. Raises `DataError` for a duplicate or a wrong name."""
        part = self._part(answer, file, unit)
        name = answer.problem or f"{TEXT_ID}{text_key(answer.question)}"
        problem = self._problem(part, name, answer, file)
        if problem.question != encodable(answer.question):
            raise DataError(
                f"{answer.place}: problem {name[:60]!r} has another text than before; give a column that "
                "tells the problems apart"
            )
        if answer.sample is None and problem.file != file:
            raise DataError(f"{answer.place}: {_words(part)} has problem {name[:60]!r} in another file, too")
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
                f"{answer.place}: sample {sample} of problem {name[:60]!r} appears twice for {_words(part)}; "
                "remove the duplicate, or map the columns that tell them apart"
            ) from None
        problem.num += 1

    def add_curve(self, curve: Curve, *, file: int, unit: str) -> None:
        """Take in the curves of a run, joined with those of the same run.

        Curves that disagree are of two seeds where none is stated, else `DataError` is raised.
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
            raise DataError(f"two files give {curve.method}, seed {curve.seed}, different values of {clash}")
        joined = {step: {**values, **steps.get(step, {})} for step, values in curve.steps.items()}
        self.curves[run] = replace(curve, steps={**steps, **joined})
        self.curve_files.setdefault(run, set()).add(file)

    def num_correct(self, part: Part, *, incomplete: bool) -> tuple[NDArray[np.int64], int]:
        """The number of correct answers to each problem [P], and the number of samples K of every problem.

        With `incomplete`, each problem keeps its first K samples, K being the fewest of any. Raises
        `DataError` where problems have different numbers of samples otherwise.
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
                f"{_words(part)}: problem {most[1][:60]!r} appears {most[0]} times and {fewest[1][:60]!r} "
                f"{fewest[0]} times; --incomplete keeps the first {fewest[0]} of each"
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
        """The rows of a part by problem, as `sample_files.EVALUATION_SCHEMA` has them."""
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
        """The numbers of the files that gave a run."""
        parts = [self.files[part] for part in self.parts.values() if part.run == run]
        return sorted(set().union(*parts, self.curve_files.get(run, set())))

    def runs(self) -> list[RunKey]:
        """All runs, in the order in which they appear."""
        return list(dict.fromkeys([*(part.run for part in self.parts.values()), *self.curves]))

    def close(self) -> None:
        """Close the database; its file stays."""
        self._database.close()

    def _problem(self, part: Part, name: str, answer: Answer, file: int) -> _Problem:
        """The problem of a row; the latest one is kept, since rows of a problem often follow each other."""
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
                    f"{answer.place}: the {what} is {name[:40]!r}; at most {_MAX_NAME} printable "
                    "characters are allowed"
                )
        run = (
            RunKey(answer.method, answer.seed) if answer.seed is not None else self._free(answer, file, unit)
        )
        part = self.parts.get((run, answer.benchmark, answer.step))
        if part is None:
            if len(self.parts) == _MAX_PARTS:
                raise DataError(
                    f"{answer.place}: more than {_MAX_PARTS:,} runs, benchmarks and steps; check the mapping"
                )
            part = Part(number=len(self.parts), run=run, benchmark=answer.benchmark, step=answer.step)
            self.parts[run, answer.benchmark, answer.step] = part
        self.files.setdefault(part, set()).add(file)
        self._known[key] = part
        return part

    def _free(self, answer: Answer, file: int, unit: str) -> RunKey:
        """The first seed of the unit whose answers to this benchmark at this step no other file gave."""
        number = 0
        while True:
            run = RunKey(answer.method, None, (unit, number))
            part = self.parts.get((run, answer.benchmark, answer.step))
            if part is None or self.files[part] == {file}:
                return run
            number += 1


def _disagreement(known: Mapping[int, Mapping[str, float]], new: Mapping[int, Mapping[str, float]]) -> str:
    """Return a metric and step at which two curves disagree beyond rounding in the files."""
    for step in known.keys() & new.keys():
        for name in known[step].keys() & new[step].keys():
            if not math.isclose(known[step][name], new[step][name], rel_tol=1e-4, abs_tol=1e-6):
                return f"{name} at step {step}"
    return ""


def _words(part: Part) -> str:
    seed = "" if part.run.seed is None else f", seed {part.run.seed}"
    step = f" at step {part.step}" if part.step else ""
    return f"method {part.run.method}{seed}, benchmark {part.benchmark}{step}"
