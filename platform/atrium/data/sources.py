"""The files of a problem set: files on this machine, or files that are downloaded from the Hugging Face Hub.

Files of one repository always come from one commit, which is reported; interrupted downloads are resumed.
`HF_ENDPOINT` names another Hub, `HF_HUB_OFFLINE` forbids network access, and `HF_HOME` or `HF_HUB_CACHE`
select another cache. Code in a repository is never run, and data files must be JSON, CSV or Parquet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from atrium.base.errors import DataError, reason_of
from atrium.base.rows import READERS

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")
_MAX_LISTED = 8
_LOCAL_COPY = "give a local copy with source=PATH"
_NOT_REACHED = "is not in the local cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set)"

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedFiles:
    """Files on this machine, in reading order.

    `revision` is the commit on the Hub from which they were downloaded, or None for files from a local path.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    revision: str | None


def locate_files(
    source: str, files: Sequence[str], *, revision: str | None, cache_dir: Path, log: Log
) -> LocatedFiles:
    """Return the files of a local path or Hub dataset; files that are not in the cache are downloaded.

    If `source` is a local file, `files` is ignored. If a folder or repository has one data file, `files` may
    be empty. Raises `DataError` if a file is missing or cannot be downloaded.
    """
    path = Path(source).expanduser()
    if is_local(source):
        return _local_files(source, path, files)
    if not _HUB_ID.fullmatch(source):
        raise DataError(
            f"source={source}: there is no such file, and the name is not a Hub id (owner/name); correct it"
        )
    return _hub_files(source, files, revision=revision, cache_dir=cache_dir, log=log)


def is_local(source: str) -> bool:
    """Return whether a source is a local path: it exists, looks like a path, or has a data file's suffix."""
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    return looks_like_path or path.suffix.lower() in READERS or path.exists()


def _local_files(source: str, path: Path, files: Sequence[str]) -> LocatedFiles:
    if path.is_file():
        return LocatedFiles(paths=(path,), names=(path.name,), revision=None)
    if not path.is_dir():
        raise DataError(f"source={source}: there is no such file or folder; correct the path")
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    names = tuple(files) or (_only_data_file(source, found),)
    paths = tuple(path / name for name in names)
    for name, file in zip(names, paths, strict=True):
        if not file.is_file():
            raise DataError(f"source={source}: there is no file {name}; the folder has {_listed(found)}")
    return LocatedFiles(paths=paths, names=names, revision=None)


def _hub_files(
    source: str, files: Sequence[str], *, revision: str | None, cache_dir: Path, log: Log
) -> LocatedFiles:
    names, commit = tuple(files), revision
    if not names:
        names, commit = _files_on_hub(source, revision, cache_dir)
    paths: list[Path] = []
    for name in names:
        path = _downloaded(source, name, revision=commit, cache_dir=cache_dir, log=log)
        # The first file determines the commit of a branch; the other files must come from the same commit.
        commit = _commit_of(path, name) or commit
        paths.append(path)
    return LocatedFiles(paths=tuple(paths), names=names, revision=commit)


def _downloaded(source: str, name: str, *, revision: str | None, cache_dir: Path, log: Log) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    options: dict[str, Any] = {
        "repo_type": "dataset",
        "revision": revision,
        "cache_dir": _hub_cache(cache_dir),
    }
    cached = try_to_load_from_cache(source, name, **options)
    if not isinstance(cached, str):
        log(f"fetching {name} of {source} from {_endpoint() or 'the Hugging Face Hub'}")
    try:
        return Path(hf_hub_download(source, name, endpoint=_endpoint(), **options))
    except Exception as error:  # the library passes through the errors of its HTTP client
        raise _download_error(error, source=source, name=name, revision=revision) from error


def _files_on_hub(source: str, revision: str | None, cache_dir: Path) -> tuple[tuple[str, ...], str | None]:
    """Return the name of the repository's only data file, in a tuple of length 1, and its commit.

    The commit is None if the Hub does not report it. Raises `DataError` if the repository cannot be read, or
    does not have exactly one data file.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi(endpoint=_endpoint()).dataset_info(source, revision=revision)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        commit = info.sha
    except Exception as error:  # as above
        options: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "local_files_only": True}
        try:
            # Files fetched by an earlier run are used without network access.
            cached = Path(snapshot_download(source, cache_dir=_hub_cache(cache_dir), **options))
        except Exception:  # no usable copy: report why the Hub could not be read
            raise _download_error(error, source=source, name=None, revision=revision) from error
        names = [str(path.relative_to(cached)) for path in cached.rglob("*")]
        commit = cached.name
    return (_only_data_file(source, names),), commit


def _only_data_file(source: str, names: Sequence[str]) -> str:
    data = [name for name in names if PurePosixPath(name).suffix.lower() in READERS]
    if len(data) != 1:
        found = f"has {len(data)} data files ({_listed(data)})" if data else "has no data file"
        raise DataError(f"source={source} {found}, expected one; set files=[NAME,...] to the files to read")
    return data[0]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more if names else "nothing"


def _commit_of(path: Path, name: str) -> str | None:
    """Return the commit in a cache path `.../snapshots/<commit>/<name>`, or None for any other path."""
    snapshot = path.parents[len(PurePosixPath(name).parts) - 1]
    return snapshot.name if snapshot.parent.name == "snapshots" else None


def _hub_cache(cache_dir: Path) -> Path | None:
    """Return the cache folder, or None if an environment variable selects one for the Hub library."""
    return None if any(os.environ.get(name) for name in _CACHE_VARIABLES) else cache_dir / "huggingface"


def _endpoint() -> str | None:
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _download_error(error: Exception, *, source: str, name: str | None, revision: str | None) -> DataError:
    from huggingface_hub import errors as hub

    what = f"{source}" + (f", file {name}" if name else "") + (f", revision {revision}" if revision else "")
    for kind, reason in (
        (hub.GatedRepoError, "access is restricted; request it on the Hub, then run `hf auth login`"),
        (hub.RevisionNotFoundError, "there is no such revision; see the Hub, or set revision=null"),
        (hub.RepositoryNotFoundError, "the Hub has no such dataset that you can access; check the name"),
        (hub.RemoteEntryNotFoundError, "the Hub has no such file; see which exist, and set files=[NAME]"),
        (hub.OfflineModeIsEnabled, f"HF_HUB_OFFLINE forbids the download; unset it, or {_LOCAL_COPY}"),
        (hub.LocalEntryNotFoundError, f"{_NOT_REACHED}; try again, or {_LOCAL_COPY}"),
    ):
        if isinstance(error, kind):
            return DataError(f"dataset {what}: {reason}")
    return DataError(
        f"dataset {what}: the download failed ({reason_of(error)}); start again (complete files are kept), "
        f"or {_LOCAL_COPY}"
    )
