"""Where a sweep's trials are kept: an Optuna storage, opened so that its failures are one clear line.

A journal file is the default; SQLite, PostgreSQL and MySQL go by URL. Optuna's own messages never reach
the terminal, its exceptions become `SweepError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from atrium.base.errors import ConfigError, MissingDependencyError, SweepError

JOURNAL_FILE, SQLITE_FILE = "journal.log", "study.db"
_LOCK_TIMEOUT_S = 60
_SCHEMES = ("postgresql", "mysql", "mariadb", "sqlite")
_PASSWORD = re.compile(r"(://[^:/@]+):[^@]*@")
_QUERY_PASSWORD = re.compile(r"([?&]\w*passw(?:or)?d=)[^&#]*", re.IGNORECASE)


def storage_url(wanted: str | None, folder: Path) -> str:
    """The storage that was asked for: `journal` (the default), `sqlite`, or a URL; `ConfigError` else."""
    if wanted in (None, "journal"):
        return f"journal:///{(folder / JOURNAL_FILE).absolute()}"
    if wanted == "sqlite":
        if "?" in str(folder):
            raise ConfigError(f"storage=sqlite: a URL cannot name {folder}, because of its ?; use journal")
        return f"sqlite:///{(folder / SQLITE_FILE).absolute()}"
    assert wanted is not None
    scheme = wanted.partition("://")[0].partition("+")[0]
    if "://" not in wanted or scheme not in (*_SCHEMES, "journal"):
        raise ConfigError(
            f"storage={without_password(wanted)}: must be journal, sqlite, or a URL such as "
            "postgresql+psycopg://user@host/database or mysql+pymysql://user@host/database"
        )
    return wanted


def without_password(url: str) -> str:
    """A URL that may be shown and written down."""
    return _QUERY_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


class SweepStorage:
    """An open storage, and whether what it was opened on is still there.

    Raises `SweepError` where it cannot be opened, `MissingDependencyError` without its driver.
    """

    def __init__(self, url: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.url = url
        self.path = _file_of(url)
        self._inode: int | None = None
        with self.explained():
            self.optuna: BaseStorage = self._open()
            self._inode = self.path.stat().st_ino if self.path is not None else None

    def _open(self) -> BaseStorage:
        if self.url.startswith("journal:"):
            assert self.path is not None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(_CheckedBackend(str(self.path), _KernelLock(self.path)))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        arguments = {"connect_args": {"timeout": _LOCK_TIMEOUT_S}} if self.path is not None else {}
        try:
            return RDBStorage(self.url, engine_kwargs={"pool_pre_ping": True, **arguments})
        except ImportError as error:
            driver = self.url.partition("://")[0]
            raise MissingDependencyError(
                f"storage={without_password(self.url)}: the driver of {driver} is not installed; "
                "install the sweep extra, or the package that the URL names"
            ) from error

    def check(self) -> None:
        """Raise `SweepError` where the file was removed or replaced, which SQLite would not notice."""
        if self.path is None or self._inode is None:
            return
        try:
            present = self.path.stat().st_ino == self._inode
        except OSError:
            present = False
        if not present:
            raise SweepError(
                f"the sweep's storage {self.path} was removed or replaced; put it back and give the same "
                "command, or start again under another name; finished runs are as they were"
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what the storage raises inside the block into one `SweepError`."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (OSError, SQLAlchemyError, optuna.exceptions.StorageInternalError, ValueError) as error:
            if isinstance(error, ValueError) and "log format" not in str(error).lower():
                raise
            self.check()
            raise SweepError(
                f"the sweep's storage {without_password(self.url)} fails: {_reason(error)}; mend that and "
                "give the same command, which resumes the sweep"
            ) from error


class _KernelLock(JournalFileOpenLock):
    """A lock that the system releases when its holder dies; the end of a torn write is cut off.

    Optuna's own locks are files: a worker that is killed while it writes would hold all others up.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock_path = journal.with_name(f"{journal.name}.lock")
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            _drop_torn_line(self._journal)
        return True

    def release(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


class _CheckedBackend(JournalFileBackend):
    """A journal that is not created again when it was removed: all trials would be forgotten silently."""

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        if not Path(self._file_path).exists():
            raise FileNotFoundError(2, os.strerror(2), self._file_path)
        super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The operations from a number on; `OSError` for a line that holds none."""
        number = log_number_from
        try:
            for log in super().read_logs(log_number_from):
                if not isinstance(log, dict) or not isinstance(log.get("op_code"), int):
                    raise TypeError
                number += 1
                yield log
        except (TypeError, ValueError):
            raise OSError(errno.EIO, f"line {number + 1} of it holds no operation") from None


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end, which a full disk leaves behind."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _file_of(url: str) -> Path | None:
    if url.startswith("journal:///"):
        return Path(url.removeprefix("journal:///"))
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///").partition("?")[0])
    return None


def _reason(error: Exception) -> str:
    """The failure in a few words: the innermost cause, without SQL."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    strerror = getattr(original, "strerror", None)
    return str(strerror or " ".join(str(original).split()) or type(original).__name__)[:200]
