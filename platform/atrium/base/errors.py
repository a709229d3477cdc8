"""The one tree of errors that a user can cause or meet; every message says what, where and what to do.

The command line prints such an error as one line and exits with its `exit_code`; anything else that is
raised is a defect of Atrium and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


def install_command(extra: str) -> str:
    """The command, in backticks, that installs an extra: by make in a checkout, else from the wheel."""
    is_checkout = (Path(__file__).parents[3] / "Makefile").is_file()
    return f"`make install EXTRAS={extra}`" if is_checkout else f"`pip install 'FILE.whl[{extra}]'`"


class AtriumError(Exception):
    """Base of all errors meant for the user. The message is one line and names the fix."""

    exit_code = 1
    cause = "error"
    """What `status.json` records as the cause of a run that this error ends."""

    @property
    def line(self) -> str:
        """The message without line breaks."""
        return " ".join(str(self).split())


class ConfigError(AtriumError):
    """A setting or a command line is wrong: unknown, of the wrong type, out of range, or idle."""

    exit_code = 2
    cause = "settings"


class PluginError(AtriumError):
    """Code of a plugin raised an error, or returned what it must not."""

    exit_code = 2
    cause = "plugin"


class MissingDependencyError(AtriumError):
    """A package or program that the chosen settings need is not installed."""

    exit_code = 2
    cause = "missing_package"


class RunFolderError(AtriumError):
    """A run folder is missing, unwritable, from another version, or does not fit the request."""

    exit_code = 2
    cause = "run_folder"


class CheckpointError(AtriumError):
    """A checkpoint is missing, damaged, or belongs to other settings."""

    exit_code = 2
    cause = "checkpoint"


class DataError(AtriumError):
    """A dataset or benchmark is missing, or is not what its configuration declares."""

    exit_code = 2
    cause = "data"


class EngineError(AtriumError):
    """An engine failed, or generated from other weights or another distribution than the policy's."""

    cause = "engine"


class GraderError(AtriumError):
    """The grader itself can grade no more; no answer is at fault, and none may count as wrong for it."""

    cause = "grader"


class PolicyDivergedError(EngineError):
    """The policy's logits are not finite, so that nothing can be sampled from it any more."""

    cause = "diverged"

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not finite, so nothing can be sampled: its weights have diverged; "
            "`atrium train --resume RUN@STEP optimizer.learning_rate=RATE` begins a new run from an earlier "
            "checkpoint with a lower rate"
        )


class TrainingDivergedError(AtriumError):
    """The loss or its gradient is not finite, or a bound that the settings name was crossed."""

    cause = "diverged"


class RankError(AtriumError):
    """Another process of the run is gone, hangs or failed; the message names it and what it was doing."""

    cause = "lost_process"


class MemoryExhaustedError(AtriumError):
    """Memory could not be had; the message names the phase, the size asked for and what to lower."""

    cause = "out_of_memory"


class SweepError(AtriumError):
    """A sweep's storage is gone, locked, full or not what it should be; its runs are as they were."""


class Pruned(AtriumError):  # noqa: N818 - it is a decision that was carried out, not an error
    """The run was stopped early because it cannot win any more, or has collapsed."""


class Interrupted(AtriumError):  # noqa: N818 - it is a request that was honoured, not an error
    """The run was asked to stop (Ctrl-C, SIGTERM or SIGHUP) and did so after its last whole step."""

    exit_code = 130
