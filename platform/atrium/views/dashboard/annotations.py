"""Notes, tags and the archive flag of a run: the only things that the dashboard writes.

They are people's words about a run, so they lie in its folder, in `annotations.json`, and move with it.
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
"""The most characters of a note and of a tag, and the most tags of a run."""
_WRITING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """The notes, tags and archive flag that people gave a run."""

    note: str = ""
    tags: tuple[str, ...] = ()
    is_archived: bool = False


def read_annotations(folder: Path) -> tuple[Annotations, str | None]:
    """The folder's annotations and None, or empty ones and the reason why they cannot be read."""
    path = folder / FILE_NAME
    content, problem = read_object(path)
    if problem is not None:
        return Annotations(), problem if path.exists() else None
    try:
        return changed(Annotations(), content), None
    except RunFolderError as error:
        return Annotations(), f"{FILE_NAME}: {error}"


def changed(before: Annotations, changes: object) -> Annotations:
    """The annotations with `note`, `tags` or `is_archived` replaced by what `changes` gives.

    Raises `RunFolderError` for other keys, other types, and what is too long.
    """
    if not isinstance(changes, Mapping) or changes.keys() - {"note", "tags", "is_archived"}:
        raise RunFolderError("an annotation has note, tags and is_archived, and nothing else")
    after = before
    if "note" in changes:
        after = replace(after, note=_text(changes["note"], "the note", MAX_NOTE))
    if "tags" in changes:
        tags = changes["tags"]
        if not isinstance(tags, list) or len(tags) > MAX_TAGS:
            raise RunFolderError(f"tags are a list of at most {MAX_TAGS} words")
        words = [" ".join(_text(tag, "a tag", MAX_TAG).split()) for tag in tags]
        after = replace(after, tags=tuple(dict.fromkeys(word for word in words if word)))
    if "is_archived" in changes:
        if not isinstance(changes["is_archived"], bool):
            raise RunFolderError("is_archived is true or false")
        after = replace(after, is_archived=changes["is_archived"])
    return after


def annotate(folder: Path, changes: object) -> Annotations:
    """Change what the folder holds now, and give what it holds then; who comes meanwhile waits.

    Raises `RunFolderError` for what `changed` refuses, and where the file cannot be read or written: what
    people wrote into a file that is damaged is not replaced.
    """
    with explained("annotate", folder), _alone(folder):
        before, problem = read_annotations(folder)
        if problem is not None:
            raise RunFolderError(f"{folder}: {problem}, so it is left as it is; repair or remove it first")
        after = changed(before, changes)
        write_annotations(folder, after)
    return after


def write_annotations(folder: Path, annotations: Annotations) -> None:
    """Replace the folder's annotations as a whole. Raises `RunFolderError` where they cannot be written."""
    with explained("annotate", folder):
        write_json(folder / FILE_NAME, asdict(annotations))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep out other requests, and other dashboards by a lock on the folder itself."""
    with _WRITING:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems have no locks for folders
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise RunFolderError(f"{what} is text of at most {most} characters")
    return value
