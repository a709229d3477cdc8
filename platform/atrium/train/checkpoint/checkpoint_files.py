"""The files of a checkpoint: their SHA-256 digests, and errors for files that have changed.

`SHA256SUMS` is written last and covers every other file; `sha256sum --check` reads it. This module does not
import torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atrium.base.errors import CheckpointError, reason_of
from atrium.base.plain_files import open_plain, read_plain

FORMAT_VERSION = 1
STATE = "state.json"
DIGESTS = "SHA256SUMS"
_NAME = re.compile(r"step-(\d{6,})")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoint folders, sorted by step; the list is empty if `folder` does not exist.

    Raises `CheckpointError` if the folder cannot be listed.
    """
    if not os.path.lexists(folder):  # a broken link is an error
        return []
    try:
        named = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {folder} cannot be listed ({reason_of(error)}); check the permissions of "
            "the folder"
        ) from error
    return [path for _, path in sorted((int(match[1]), path) for match, path in named)]


def write_digests(folder: Path) -> None:
    """Write the SHA-256 of every file below the folder to `SHA256SUMS`."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    lines = [f"{_digest(folder / name)}  {name}\n" for name in names]
    (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")


def check_files(folder: Path, *, below: str = "", digests: bool = True) -> None:
    """Raise `CheckpointError` for the first file that has changed or is missing.

    The sizes of all files are compared with those in `state.json`, and digests with those in `SHA256SUMS`.
    Digests are compared only for files whose paths start with `below`; if `digests` is False, none are
    compared. Additional files are ignored.
    """
    state = read_state(folder)
    with _damage_named(folder):
        expected = _read_digests(folder, state)
        for name, digest in sorted(expected.items() if digests else ()):
            if name.startswith(below) and _digest(folder / name) != digest:
                raise ValueError(
                    f"{name} changed after it was written, since its SHA-256 differs from {DIGESTS}"
                )
        for name, size in state["files"].items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} changed after it was written, since its size differs")


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of `state.json`.

    Raises `CheckpointError` if the file is missing, is damaged, or has the format of another version of
    Atrium.
    """
    with _damage_named(folder):
        try:
            state: dict[str, Any] = json.loads(read_plain(folder / STATE))
        except ValueError as error:
            raise ValueError(f"{STATE}: {error}") from error
        files = state.get("files") if isinstance(state, dict) else None
        if not isinstance(files, dict):
            raise ValueError(f"{STATE} must list the files of the checkpoint, but it lists none")  # noqa: TRY004 - of the content, not of a caller
    if (version := state.get("format_version")) != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {folder} has format {version}, expected {FORMAT_VERSION}; use the version of "
            "Atrium that wrote it"
        )
    return state


def way_back(folder: Path) -> str:
    """Return advice for an error in the last checkpoint: how to rewind to the newest intact one before it.

    If no earlier checkpoint is intact, the advice is to rewind to the start.
    """
    step = 0
    for path in reversed(checkpoint_paths(folder)[:-1]):
        try:
            check_files(path)
        except CheckpointError:
            continue
        step = int(path.name.removeprefix("step-"))
        break
    return going_back(folder.parent, step)


def going_back(run: Path, step: int) -> str:
    """Return advice for a message: the command that rewinds a run to `step`, or to the start for step 0."""
    where = f"step {step}" if step else "the start"
    return (
        f"`atrium train --resume {shlex.quote(str(run))} --from-step {step}` rewinds to {where} and sets "
        "later records aside"
    )


@contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Convert an `OSError` or `ValueError` within the block to a `CheckpointError` that names the folder."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename).name if error.filename else "a file"
        is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        what = "is damaged" if is_gone else "cannot be read"
        raise CheckpointError(f"checkpoint {folder} {what} ({name}: {reason_of(error)})") from error
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder} is damaged ({reason_of(error)})") from error


def _read_digests(folder: Path, state: dict[str, Any]) -> dict[str, str]:
    """Return the digests by file name.

    Raises `ValueError` for an invalid line, or if `state.json` or a file that `state` lists has no digest.
    """
    digests = {}
    for line in read_plain(folder / DIGESTS).decode().splitlines():
        if (match := _LINE.fullmatch(line)) is None:
            raise ValueError(f"{DIGESTS} contains an invalid line: {line[:80]!r}")
        digests[match[2]] = match[1]
    if missing := sorted({STATE, *state["files"]} - digests.keys()):
        raise ValueError(f"{DIGESTS} has no entry for {missing[0]}")
    return digests


def _digest(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
