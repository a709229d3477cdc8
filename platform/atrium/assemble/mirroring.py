"""A run and its mirrors: the processes that copy it to trackers are started and heard in the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atrium.assemble.observing import RunObserver
from atrium.config.schema import TrackingConfig
from atrium.tracking.mirrors.process import MirrorProcesses


@dataclass(frozen=True)
class MirroredRun:
    """Tells the mirrors of each step, and then whoever else observes the run; implements `RunObserver`."""

    mirrors: MirrorProcesses
    then: RunObserver | None

    def evaluated(self, step: int, benchmark: str, results: Mapping[str, object]) -> None:
        """One evaluation has been recorded."""
        if self.then is not None:
            self.then.evaluated(step, benchmark, results)

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of one step have been recorded."""
        self.mirrors.after_step()
        if self.then is not None:
            self.then.stepped(step, metrics)


def configured_mirrors(tracking: TrackingConfig) -> tuple[str, ...]:
    """The trackers that the settings name."""
    chosen = {"mlflow": tracking.mlflow, "wandb": tracking.wandb, "tensorboard": tracking.tensorboard}
    return tuple(kind for kind, settings in chosen.items() if settings is not None)
