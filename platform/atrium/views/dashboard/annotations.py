"""Notes, tags and archive flags of runs, the only data that the dashboard writes apart from caches.

Each run directory has its own `annotations.json`.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from atrium.base.atomic import explained, write_json
from atrium.base.errors import RunFolderError
from atrium.base.recorded import read_object
from atrium.compare.default_choice import ANNOTATIONS

FILE_NAME = ANNOTATIONS
MAX_NOTE, MAX_TAG, MAX_TAGS = 20_000, 60, 50
"""Maximum characters of a note and of a tag, and maximum number of tags of a run."""
_WRITING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """A user's note, tags and archive flag of a run."""

    note: str = ""
    tags: tuple[str, ...] = ()
    is_archived: bool = False


def read_annotations(folder: Path) -> tuple[Annotations, str | None]:
    """Return a run's annotations, and an error message if the file cannot be read.

    The message is None if the file was read or does not exist. Without a readable file, the annotations
    are empty.
    """
    path = folder / FILE_NAME
    content, problem = read_object(path)
    if problem is not None:
        return Annotations(), problem if path.exists() else None
    try:
        return changed(Annotations(), content), None
    except RunFolderError as error:
        return Annotations(), f"{FILE_NAME}: {error}"


def changed(before: Annotations, changes: object) -> Annotations:
    """Return a copy of `before` with the fields in `changes` replaced.

    The fields are `note`, `tags` and `is_archived`. Blank and repeated tags are dropped, and spaces in tags
    are normalized. Raises `RunFolderError` for unknown keys, wrong types, and values that are too long.
    """
    if not isinstance(changes, Mapping) or changes.keys() - {"note", "tags", "is_archived"}:
        raise RunFolderError("an annotation must be an object with only note, tags and is_archived")
    after = before
    if "note" in changes:
        after = replace(after, note=_text(changes["note"], "the note", MAX_NOTE))
    if "tags" in changes:
        tags = changes["tags"]
        if not isinstance(tags, list) or len(tags) > MAX_TAGS:
            raise RunFolderError(f"tags must be a list of at most {MAX_TAGS} strings")
        words = [" ".join(_text(tag, "a tag", MAX_TAG).split()) for tag in tags]
        after = replace(after, tags=tuple(dict.fromkeys(word for word in words if word)))
    if "is_archived" in changes:
        if not isinstance(changes["is_archived"], bool):
            raise RunFolderError("is_archived must be true or false")
        after = replace(after, is_archived=changes["is_archived"])
    return after


def annotate(folder: Path, changes: object) -> Annotations:
    """Change a run's annotations and return the new ones. Concurrent changes are applied one by one.

    Raises `RunFolderError` for invalid changes (see `changed`), and if the file cannot be read or written.
    A damaged file is never overwritten.
    """
    with explained("annotate", folder), _alone(folder):
        before, problem = read_annotations(folder)
        if problem is not None:
            raise RunFolderError(
                f"the annotations of {folder} cannot be changed: {problem}; repair or remove the file"
            )
        after = changed(before, changes)
        write_annotations(folder, after)
    return after


def write_annotations(folder: Path, annotations: Annotations) -> None:
    """Write a run's annotations to its run directory; raise `RunFolderError` if this fails."""
    with explained("annotate", folder):
        write_json(folder / FILE_NAME, asdict(annotations))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a run's annotations against other threads, and, if the file system allows it, other processes."""
    with _WRITING:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems cannot lock folders
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise RunFolderError(f"{what} must be text of at most {most} characters")
    return value
