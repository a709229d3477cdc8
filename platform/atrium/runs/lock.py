"""An exclusive lock on a run directory, which the operating system releases when the process exits.

The lock is advisory (`flock` on a lock file), so readers are never blocked. Forked child processes close
their copy of the lock file, so an orphaned worker cannot block a resume.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from atrium.base.errors import RunFolderError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class RunLock:
    """An exclusive lock on the file `path`, held from construction until `release` or process exit.

    The constructor raises `RunFolderError` if the lock is already held, by another process or by another
    `RunLock` in this process. `owner` describes the holder in the error message. On file systems without
    locks, the lock has no effect.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise RunFolderError(
                f"{path.parent} is in use by {owner}; wait until that process ends, or stop it"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                os.close(self._descriptor)
                raise
        _HELD.add(self._descriptor)

    def release(self) -> None:
        """Release the lock. Harmless when called twice."""
        if self._descriptor >= 0:
            _HELD.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_HELD: set[int] = set()


def _close_inherited() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_close_inherited)
