"""The hierarchy of errors shown to users; every message says what is wrong, where, and what to do.

The command line prints such an error as one line and exits with its `exit_code`. Any other exception is a bug
in Atrium and keeps its traceback.
"""

from __future__ import annotations

import errno
from pathlib import Path


def install_command(extra: str) -> str:
    """Return the command, in backticks, that installs an optional extra: `make` in a checkout, else `pip`."""
    is_checkout = (Path(__file__).parents[3] / "Makefile").is_file()
    return f"`make install EXTRAS={extra}`" if is_checkout else f"`pip install 'FILE.whl[{extra}]'`"


def reason_of(error: BaseException) -> str:
    """Return why an error occurred, on one line of at most 300 characters.

    The reason is the system's text without a path for an `OSError` with such a text, the error's type if its
    message is empty, and otherwise the message.
    """
    text = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".")
    return (text if len(text) <= 300 else f"{text[:299]}…") or type(error).__name__


def remedy_of(error: BaseException) -> str:
    """Return what to do about a file that could not be read or written.

    Libraries report a full disk by errors of their own, so only an `OSError` can have another cause.
    """
    is_full = not isinstance(error, OSError) or error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free disk space" if is_full else "check the path and its permissions"


class AtriumError(Exception):
    """Base class of all errors shown to users. The message says how to fix the problem."""

    exit_code = 1
    cause = "error"
    """The cause that `status.json` records if this error ends a run."""

    @property
    def line(self) -> str:
        """The message as one line: each sequence of spaces and line breaks becomes a single space."""
        return " ".join(str(self).split())


class ConfigError(AtriumError):
    """A setting or command line is wrong: unknown, of the wrong type, out of range, or without effect."""

    exit_code = 2
    cause = "settings"


class PluginError(AtriumError):
    """A plugin's code raised an error or returned an invalid value."""

    exit_code = 2
    cause = "plugin"


class MissingDependencyError(AtriumError):
    """A package or program that the chosen settings need is not installed."""

    exit_code = 2
    cause = "missing_package"


class RunFolderError(AtriumError):
    """A run directory is missing, not writable, unsuitable for the request, or of an incompatible version."""

    exit_code = 2
    cause = "run_folder"


class CheckpointError(AtriumError):
    """A checkpoint is missing or damaged, or it does not match the settings."""

    exit_code = 2
    cause = "checkpoint"


class DataError(AtriumError):
    """A dataset or benchmark is missing, or does not match its configuration."""

    exit_code = 2
    cause = "data"


class EngineError(AtriumError):
    """An engine failed, or sampled with weights or a distribution that differ from the policy's."""

    cause = "engine"


class GraderError(AtriumError):
    """The grader failed and cannot continue. The run stops, so ungraded answers do not count as wrong."""

    cause = "grader"


class PolicyDivergedError(EngineError):
    """The policy's logits are not finite, so no completion can be sampled."""

    cause = "diverged"

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not finite, so nothing can be sampled: its weights have diverged; "
            "`atrium train --resume RUN@STEP optimizer.learning_rate=LR` starts a new run from an earlier "
            "checkpoint with a lower learning rate"
        )


class TrainingDivergedError(AtriumError):
    """The loss or its gradient is not finite, or a limit given in the settings was exceeded."""

    cause = "diverged"


class RankError(AtriumError):
    """A process of the run exited, failed or hangs, or the processes could not be started.

    If the process and its last activity are known, the message names them.
    """

    cause = "lost_process"


class MemoryExhaustedError(AtriumError):
    """Out of memory; the message names the phase and the settings to change."""

    cause = "out_of_memory"


class SweepError(AtriumError):
    """A sweep's storage is missing, locked, full or damaged; the sweep's runs are unchanged."""


class Pruned(AtriumError):  # noqa: N818 - a decision of a sweep, not an error
    """A sweep stopped the run early because the run can no longer win or has collapsed."""


class Interrupted(AtriumError):  # noqa: N818 - a request of the user, not an error
    """Ctrl-C or a signal such as SIGTERM stopped the command.

    A training run normally completes the current step before it stops.
    """

    exit_code = 130
