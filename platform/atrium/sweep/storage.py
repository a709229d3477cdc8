"""The storage of a sweep's trials: an Optuna storage whose failures become one-line errors.

The default is a journal file. A URL selects SQLite, PostgreSQL or MySQL. Optuna's own messages do not
reach the terminal, and its exceptions become `SweepError`.
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
_PASSWORD = re.compile(r"(://[^:/@]*):.*@")
_QUERY_PASSWORD = re.compile(r"([?&]\w*passw(?:or)?d=)[^&#]*", re.IGNORECASE)


def storage_url(wanted: str | None, folder: Path) -> str:
    """Return the storage URL for `wanted`: `journal` (the default), `sqlite`, or a URL.

    Raises `ConfigError` for any other text.
    """
    if wanted in (None, "journal"):
        return f"journal:///{(folder / JOURNAL_FILE).absolute()}"
    if wanted == "sqlite":
        if "?" in str(folder):
            raise ConfigError(f"storage=sqlite requires a path without ?, got {folder}; use storage=journal")
        return f"sqlite:///{(folder / SQLITE_FILE).absolute()}"
    assert wanted is not None
    scheme = wanted.partition("://")[0].partition("+")[0]
    if not wanted.startswith("journal:///") and ("://" not in wanted or scheme not in _SCHEMES):
        raise ConfigError(
            "storage must be journal, sqlite, or a URL such as journal:///FILE, "
            "postgresql+psycopg://user@host/database or mysql+pymysql://user@host/database, got "
            f"{without_password(wanted)}"
        )
    return wanted


def without_password(url: str) -> str:
    """Return the URL with its password masked, for display and logs."""
    return _QUERY_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


class SweepStorage:
    """An open Optuna storage, with a check that its file still exists.

    Raises `SweepError` if the storage cannot be opened, and `MissingDependencyError` if its driver is not
    installed.
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
                f"storage={without_password(self.url)} requires the driver of {driver}, which is not "
                "installed; install the extra `sweep`, or the driver's own package"
            ) from error

    def check(self) -> None:
        """Raise `SweepError` if the file was removed or replaced, which SQLite would not notice."""
        if self.path is None or self._inode is None:
            return
        try:
            present = self.path.stat().st_ino == self._inode
        except OSError:
            present = False
        if not present:
            raise SweepError(
                f"the storage {self.path} was removed or replaced; restore it and run the same command, "
                "or start another sweep with name=NAME; finished runs are unchanged"
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert exceptions of the storage inside the block to `SweepError`.

        Every `OSError` in the block counts as an exception of the storage.
        """
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (OSError, SQLAlchemyError, optuna.exceptions.StorageInternalError, ValueError) as error:
            if isinstance(error, ValueError) and "log format" not in str(error).lower():
                raise
            self.check()
            raise SweepError(
                f"the storage {without_password(self.url)} failed: {_reason(error)}; fix the problem and "
                "run the same command to resume the sweep"
            ) from error


class _KernelLock(JournalFileOpenLock):
    """A lock on the journal that the operating system releases when the process that holds it exits.

    Optuna's own locks are files. If a worker were killed while writing, its lock file would block all
    other workers. When the lock is acquired, an incomplete last line of the journal is removed.
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
    """A journal backend that never re-creates a removed journal, which would silently lose all trials."""

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        if not Path(self._file_path).exists():
            raise FileNotFoundError(2, os.strerror(2), self._file_path)
        super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yield the operations from number `log_number_from` on; raise `OSError` for an invalid line."""
        number = log_number_from
        try:
            for log in super().read_logs(log_number_from):
                if not isinstance(log, dict) or not isinstance(log.get("op_code"), int):
                    raise TypeError
                number += 1
                yield log
        except (TypeError, ValueError):
            raise OSError(errno.EIO, f"line {number + 1} is not an operation of Optuna") from None


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a full disk or a killed worker may leave behind."""
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
    """Return the innermost cause of the failure as text of at most 200 characters, without SQL."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    strerror = getattr(original, "strerror", None)
    return str(strerror or " ".join(str(original).split()) or type(original).__name__)[:200]
