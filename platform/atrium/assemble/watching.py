"""What watches over a run's updates: faults that are kept in its folder, and the profiler of one step."""

from __future__ import annotations

from collections.abc import Callable

from atrium.config.schema import RunConfig
from atrium.tracking.layout import RunLayout
from atrium.train.guard.faults import FaultHandling
from atrium.train.guard.profile import StepProfiler


def fault_handling(config: RunConfig, folder: RunLayout | None, log: Callable[[str], None]) -> FaultHandling:
    """What is done about updates without a finite gradient; without a folder, none of them is kept."""
    return FaultHandling(
        max_skipped=config.optimizer.max_skipped_updates,
        folder=None if folder is None else folder.faults_dir,
        log=log,
    )


def step_profiler(config: RunConfig, folder: RunLayout, log: Callable[[str], None]) -> StepProfiler | None:
    """The profiler of the step that is asked for, or None."""
    step = config.compute.profile_step
    return None if step is None else StepProfiler(step=step, folder=folder.profile_dir, log=log)
