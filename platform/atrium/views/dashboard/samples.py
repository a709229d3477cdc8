"""Sampled completions: filtered lists, and single completions with their tokens.

Model output is returned unescaped. Pages must insert it as text, not as HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrium.base.errors import RunFolderError, reason_of
from atrium.base.plain_files import cached_while_unchanged
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
    """Conditions on completions, all of which must hold. An empty field imposes no condition.

    `text` must occur in the question or the completion, regardless of case.
    """

    verdict: str = ""
    problem_id: str = ""
    text: str = ""
    min_tokens: int = 0
    max_tokens: int | None = None

    def admits(self, row: Row) -> bool:
        """Return whether the completion in a row meets all conditions."""
        num_tokens = row.get("num_tokens") or 0
        wanted = self.text.lower()
        return (
            (not self.verdict or row.get("verdict") == self.verdict)
            and (not self.problem_id or row.get("problem_id") == self.problem_id)
            and self.min_tokens <= num_tokens <= (math.inf if self.max_tokens is None else self.max_tokens)
            and (not wanted or wanted in f"{row.get('question')}\n{row.get('text')}".lower())
        )


def sources(folder: RunFolder, runs_dir: Path) -> dict[str, list[int]]:
    """Return the steps with sample files, by source: `training` or a benchmark's name."""
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
    """Return the sample file of a source at a step.

    Raises `RunFolderError` if there is no such file, or if it is outside of `runs_dir`.
    """
    if source == TRAINING:
        path = folder.rollouts_path(step)
    elif NAME_PATTERN.fullmatch(source) and not source.endswith("."):
        path = folder.evaluation_path(source, step)
    else:
        raise RunFolderError(f"unknown benchmark {source[:80]!r}")
    if not path.is_file() or not is_within(path, runs_dir):
        raise RunFolderError(f"{folder.name} has no samples of {source} at step {step}")
    return path


def listed(paths: Sequence[Path], wanted: Filter) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the completions that pass the filter, and an error message for each unreadable file.

    Questions and completions are truncated to 160 characters.
    """
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in paths:
        try:
            found = _scalars(path)
        except (OSError, RunFolderError) as error:
            problems.append(f"{path.name}: {reason_of(error)}")
            continue
        rows += [_line(row) for row in found if wanted.admits(row)]
    return rows, problems


def one(path: Path, problem_id: str, sample_index: int) -> Row:
    """Return one completion with all recorded values; raise `RunFolderError` if it does not exist."""
    for row in read_samples(path):
        if row.get("problem_id") == problem_id and row.get("sample_index") == sample_index:
            try:
                row["metadata"] = json.loads(row.get("metadata") or "{}")
            except ValueError:
                row["metadata"] = {}
            return row
    raise RunFolderError(
        f"{path.name} has no sample {sample_index} of problem {problem_id[:80]!r}; choose another sample"
    )


def token_texts(token_ids: Sequence[int], folder: RunFolder, runs_dir: Path) -> list[str] | None:
    """Return the text of each token, or None without a readable tokenizer.

    The tokenizer is that of the latest checkpoint that contains one. If several tokens encode one character,
    the last of them has the character as its text, and the others have empty text.
    """
    for _, checkpoint in reversed(steps_in(folder.checkpoints_dir)):
        path = checkpoint / "policy" / "tokenizer.json"
        if path.is_file() and is_within(path, runs_dir):
            tokenizer = _tokenizer(path)
            return None if tokenizer is None else _pieces(tokenizer, token_ids)
    return None


def _pieces(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:  # noqa: ANN401 - untyped library
    pieces: list[str] = []
    waiting: list[int] = []
    for token_id in token_ids:
        waiting.append(token_id)
        text = tokenizer.decode(waiting, skip_special_tokens=False)
        # Bytes of an incomplete character decode to U+FFFD; a character has at most four tokens.
        if text.endswith("\ufffd") and len(waiting) < 4:
            pieces.append("")
        else:
            pieces.append(text)
            waiting = []
    if waiting:
        pieces[-1] = tokenizer.decode(waiting, skip_special_tokens=False)
    return pieces


@cached_while_unchanged(8)
def _tokenizer(path: Path) -> Any:  # noqa: ANN401 - untyped library
    from tokenizers import Tokenizer  # slow import, needed for rollouts only

    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library has no narrower exception for damaged files
        return None


@cached_while_unchanged(512)
def _scalars(path: Path) -> list[Row]:
    return read_samples(path, _LISTED)


def _line(row: Row) -> dict[str, Any]:
    text = row.get("text") or ""
    question = row.get("question") or ""
    return {
        **{name: row.get(name) for name in _LISTED if name not in ("text", "question")},
        "text": text[:_MAX_PREVIEW],
        "question": question[:_MAX_PREVIEW],
    }
