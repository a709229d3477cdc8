"""Files of an evaluation's finished problems, which survive the process.

Each part is written atomically and never changed, so after any interruption exactly the problems in the parts
are finished. When a benchmark is finished its samples are in one file like any evaluation's, and the parts
are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from atrium.base.atomic import explained
from atrium.base.errors import RunFolderError
from atrium.base.records import EvaluatedSample, Problem
from atrium.runs.layout import remove
from atrium.runs.sample_files import Row, read_samples, sample_of, write_evaluation

Finished = Mapping[str, Sequence[EvaluatedSample]]
"""The samples of whole problems in order, by problem id."""


class EvaluationParts:
    """The parts of one benchmark's evaluation, in `parts/` next to the future `whole` file."""

    def __init__(self, whole: Path, *, step: int) -> None:
        self._whole = whole
        self._step = step
        self._folder = whole.parent / "parts" / whole.stem
        self._num_written = 0

    def read(self, problems: Iterable[Problem], *, num_samples: int) -> Finished:
        """Return the finished samples of `problems`, from the parts and from the whole file.

        Raises `RunFolderError` if a file is damaged, or has other problems than these or another number of
        samples.
        """
        paths = sorted(self._folder.glob("part-*.parquet")) if self._folder.is_dir() else []
        self._num_written = len(paths)
        if self._whole.is_file():
            paths.append(self._whole)
        known = {problem.problem_id: problem for problem in problems}
        finished: dict[str, list[EvaluatedSample]] = {}
        for path in paths:
            found: dict[str, list[EvaluatedSample]] = {}
            for row in read_samples(path):
                sample = _sample_of(row, known, path)
                found.setdefault(sample.problem.problem_id, []).append(sample)
            finished.update(found)
        for problem_id, samples in finished.items():
            if [sample.sample_index for sample in samples] != list(range(num_samples)):
                raise RunFolderError(
                    f"{self._whole.parent} has {len(samples)} samples of problem {problem_id!r}, expected "
                    f"{num_samples}; start a new evaluation rather than resume"
                )
        return finished

    def append(self, samples: Sequence[EvaluatedSample]) -> None:
        """Write the samples of whole problems as one part. Raises `RunFolderError` if the disk is full."""
        self._num_written += 1
        path = self._folder / f"part-{self._num_written:06d}.parquet"
        with explained("record an evaluation in", self._folder):
            write_evaluation(path, self._step, samples)

    def remove(self) -> None:
        """Delete the parts, if any, once the whole file exists."""
        if not self._whole.is_file():
            return
        remove(self._folder)
        parts = self._folder.parent
        if parts.is_dir() and not any(parts.iterdir()):
            remove(parts)


def _sample_of(row: Row, known: Mapping[str, Problem], path: Path) -> EvaluatedSample:
    problem = known.get(row["problem_id"])
    if problem is None or (row["question"], row["gold"]) != (problem.question, problem.answer):
        raise RunFolderError(
            f"{path} has problem {row['problem_id']!r}, which is no longer in the benchmark in this form; "
            "start a new evaluation rather than resume"
        )
    return sample_of(row, problem)
