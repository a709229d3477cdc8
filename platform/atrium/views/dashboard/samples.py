"""Sampled completions as people read them: listed, filtered, and one at a time with its tokens.

The text of models is passed unchanged; a page must show it as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from atrium.base.errors import RunFolderError
from atrium.runs.layout import NAME_PATTERN, steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import Row, read_samples
from atrium.views.dashboard.runs_scan import is_within

TRAINING = "training"
_LISTED = (
    "step",
    "problem_id",
    "question",
    "gold",
    "sample_index",
    "text",
    "verdict",
    "extracted",
    "reward",
    "finish_reason",
    "num_tokens",
)
_MAX_PREVIEW = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A choice of completions; a field that is empty filters nothing. Lengths are in tokens."""

    verdict: str = ""
    problem_id: str = ""
    text: str = ""
    min_tokens: int = 0
    max_tokens: int | None = None

    def admits(self, row: Row) -> bool:
        """Whether a row passes."""
        num_tokens = row.get("num_tokens") or 0
        wanted = self.text.lower()
        return (
            (not self.verdict or row.get("verdict") == self.verdict)
            and (not self.problem_id or row.get("problem_id") == self.problem_id)
            and self.min_tokens <= num_tokens <= (math.inf if self.max_tokens is None else self.max_tokens)
            and (not wanted or wanted in f"{row.get('question')}\n{row.get('text')}".lower())
        )


def sources(folder: RunFolder, runs_dir: Path) -> dict[str, list[int]]:
    """The steps that have files of samples, by `training` or the benchmark's name."""
    found = {TRAINING: [step for step, _ in steps_in(folder.rollouts_dir)]}
    try:
        benchmarks = sorted(path for path in folder.evaluations_dir.iterdir() if path.is_dir())
    except OSError:
        benchmarks = []
    for path in benchmarks:
        if is_within(path, runs_dir):
            found[path.name] = [step for step, _ in steps_in(path)]
    return {name: steps for name, steps in found.items() if steps}


def sample_path(folder: RunFolder, source: str, step: int, runs_dir: Path) -> Path:
    """The file of a source's step. Raises `RunFolderError` where there is none inside of `runs_dir`."""
    if source == TRAINING:
        path = folder.rollouts_path(step)
    elif NAME_PATTERN.fullmatch(source) and not source.endswith("."):
        path = folder.evaluation_path(source, step)
    else:
        raise RunFolderError(f"{source[:80]!r} is not the name of a benchmark")
    if not path.is_file() or not is_within(path, runs_dir):
        raise RunFolderError(f"{folder.name} has no samples of {source} at step {step}")
    return path


def listed(paths: Sequence[Path], wanted: Filter) -> tuple[list[dict[str, Any]], list[str]]:
    """A short line per completion that passes, and what could not be read."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in paths:
        try:
            stat = path.stat()
            found = _scalars(str(path), stat.st_mtime_ns, stat.st_size)
        except (OSError, RunFolderError) as error:
            problems.append(f"{path.name}: {_reason(error)}")
            continue
        rows += [_line(row) for row in found if wanted.admits(row)]
    return rows, problems


def one(path: Path, problem_id: str, sample_index: int) -> Row:
    """One completion with all that was recorded. Raises `RunFolderError` where there is none."""
    for row in read_samples(path):
        if row.get("problem_id") == problem_id and row.get("sample_index") == sample_index:
            try:
                row["metadata"] = json.loads(row.get("metadata") or "{}")
            except ValueError:
                row["metadata"] = {}
            return row
    raise RunFolderError(f"{path.name} has no sample {sample_index} of problem {problem_id[:80]!r}")


def token_texts(token_ids: Sequence[int], folder: RunFolder, runs_dir: Path) -> list[str] | None:
    """The text of each token, or None where no checkpoint of the run holds a tokenizer.

    A character that several tokens share comes with its last one.
    """
    for _, checkpoint in reversed(steps_in(folder.checkpoints_dir)):
        path = checkpoint / "policy" / "tokenizer.json"
        if path.is_file() and is_within(path, runs_dir):
            stat = path.stat()
            tokenizer = _tokenizer(str(path), stat.st_mtime_ns)
            return None if tokenizer is None else _pieces(tokenizer, token_ids)
    return None


def _pieces(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:  # noqa: ANN401 - untyped library
    pieces: list[str] = []
    waiting: list[int] = []
    for token_id in token_ids:
        waiting.append(token_id)
        text = tokenizer.decode(waiting, skip_special_tokens=False)
        # Bytes of an unfinished character decode to this; four tokens always hold a whole one.
        if text.endswith("\ufffd") and len(waiting) < 4:
            pieces.append("")
        else:
            pieces.append(text)
            waiting = []
    if waiting:
        pieces[-1] = tokenizer.decode(waiting, skip_special_tokens=False)
    return pieces


@lru_cache(maxsize=8)
def _tokenizer(path: str, _modified: int) -> Any:  # noqa: ANN401 - untyped library
    from tokenizers import Tokenizer  # costs time that only readers of rollouts need to spend

    try:
        return Tokenizer.from_file(path)
    except Exception:  # the library raises nothing narrower for a damaged file
        return None


@lru_cache(maxsize=512)
def _scalars(path: str, _modified: int, _size: int) -> list[Row]:
    return read_samples(Path(path), _LISTED)


def _line(row: Row) -> dict[str, Any]:
    text = row.get("text") or ""
    question = row.get("question") or ""
    return {
        **{name: row.get(name) for name in _LISTED if name not in ("text", "question")},
        "text": text[:_MAX_PREVIEW],
        "question": question[:_MAX_PREVIEW],
    }


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
