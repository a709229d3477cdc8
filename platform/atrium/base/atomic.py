"""Atomic file writes: after a crash, a file has either its old or its new content, never a mixture.

The new content is written to a temporary file next to the target and flushed to disk. The temporary file then
replaces the target, and the folder is flushed to disk too. Files that grow line by line are written by
`json_lines`.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atrium.base.errors import RunFolderError, reason_of, remedy_of

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is renamed to `path` on success and deleted on failure.

    Raises `OSError` if the disk is full or the folder is not writable; `path` is then unchanged.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically; characters that UTF-8 cannot encode become `?`."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "replace"))


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write an object atomically as indented standard JSON; NaN and infinities become text (`"NaN"`)."""
    text = json.dumps(standard_json(value), indent=2, allow_nan=False)
    write_text(path, text + "\n")


def standard_json(value: object) -> object:
    """Convert a value to standard JSON types, recursively.

    NaN, infinities and paths become text. Scalars of numpy and torch become numbers, tuples become lists, and
    keys become text. Raises `TypeError` for any other type; for an array with several elements, numpy raises
    `ValueError` and torch `RuntimeError`.
    """
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return float(value) if math.isfinite(value) else _NAMES.get(value, "NaN")
        case Mapping():
            return {str(key): standard_json(item) for key, item in value.items()}
        case list() | tuple():
            return [standard_json(item) for item in value]
        case os.PathLike():
            return os.fspath(value)
        case _ if hasattr(value, "item"):  # a scalar of numpy or torch, without importing either
            return standard_json(value.item())
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in the folder survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some network file systems refuse to sync a folder; the rename itself has happened.
        pass
    finally:
        os.close(descriptor)


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` in the body into a `RunFolderError` of the form "cannot ACTION PATH: REASON"."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot {action} {path}: {reason_of(error)}; {remedy_of(error)}, or choose another runs_dir"
        ) from error
