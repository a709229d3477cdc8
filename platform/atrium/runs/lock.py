"""A lock for the process that trains into a run folder, which the system releases when it dies.

It is advisory (`flock` on the file `.lock`), so readers are never blocked. Forked child processes do not keep
it: an orphaned worker must not block a resume.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from atrium.base.errors import RunFolderError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class RunLock:
    """Holds the lock of one run folder from its creation until `release`, or the end of the process.

    On file systems without locks nothing is protected. Raises `RunFolderError` if another process holds the
    lock.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise RunFolderError(
                f"{path.parent} is in use by {owner}; wait until it ends, or stop it first"
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
