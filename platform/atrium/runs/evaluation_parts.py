"""Files ("parts") with the finished problems of an evaluation in progress, so that it can be resumed.

Each part is written atomically and never changed, so an interruption loses only the problems that no part
contains yet. When a benchmark is finished, all its samples are written to one file, and the parts are
deleted.
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
    """The parts of one benchmark's evaluation at `step`, in the folder `parts/` next to `whole`.

    `whole` is the path of the file that contains all samples once the evaluation is finished. To resume an
    evaluation, call `read` before `append`, which otherwise overwrites the existing parts.
    """

    def __init__(self, whole: Path, *, step: int) -> None:
        self._whole = whole
        self._step = step
        self._folder = whole.parent / "parts" / whole.stem
        self._num_written = 0

    def read(self, problems: Iterable[Problem], *, num_samples: int) -> Finished:
        """Return the samples of finished problems, from the parts and from the file `whole` if it exists.

        Raises `RunFolderError` if a file is damaged, contains a problem that is not in `problems` or has
        changed, or does not contain `num_samples` samples per problem.
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
                    f"{self._whole.parent} has {len(samples)} samples of problem {problem_id!r}, "
                    f"expected {num_samples}; start a new evaluation instead of resuming"
                )
        return finished

    def append(self, samples: Sequence[EvaluatedSample]) -> None:
        """Write the samples of finished problems as one part; raises `RunFolderError` if this fails."""
        self._num_written += 1
        path = self._folder / f"part-{self._num_written:06d}.parquet"
        with explained("record an evaluation in", self._folder):
            write_evaluation(path, self._step, samples)

    def remove(self) -> None:
        """Delete the parts if the file `whole` exists; otherwise do nothing."""
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
            f"{path} has problem {row['problem_id']!r}, which changed or is no longer in the benchmark; "
            "start a new evaluation instead of resuming"
        )
    return sample_of(row, problem)
