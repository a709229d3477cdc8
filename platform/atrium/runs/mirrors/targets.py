"""Functions that create a run's deliveries to trackers from the run's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from atrium.base.errors import ConfigError
from atrium.base.nested import setting
from atrium.base.recorded import read_object
from atrium.runs.find import started
from atrium.runs.mirrors.delivery import Delivery, Destination, Mirrors
from atrium.runs.mirrors.description import describe_run
from atrium.runs.mirrors.mlflow import MLflowDestination, default_uri
from atrium.runs.mirrors.tensorboard import TensorBoardDestination
from atrium.runs.mirrors.trackio import TrackioDestination
from atrium.runs.mirrors.wandb import WandbDestination
from atrium.runs.run_folder import RunFolder

KINDS = ("mlflow", "wandb", "tensorboard", "trackio")
DEFAULT_PROJECT = "atrium"


def delivery_of(
    folder: RunFolder, kind: str, *, uri: str | None = None, offline: bool | None = None
) -> Delivery:
    """Return the delivery of a run to the tracker `kind`, one of `KINDS`; raise `ConfigError` for others.

    `uri` (MLflow) and `offline` (W&B) take precedence over the run's settings unless they are None. The
    environment variable `WANDB_MODE=offline` takes precedence over both `offline` and the run's setting.
    """
    config, _ = read_object(folder.config_file)
    runs_dir = folder.path.absolute().parent.parent
    run = describe_run(folder, started(folder))
    destination: Destination
    if kind == "mlflow":
        chosen = uri or _text(config, "tracking.mlflow.uri") or default_uri(runs_dir)
        destination = MLflowDestination(run, runs_dir=runs_dir, uri=chosen)
    elif kind == "wandb":
        is_offline = _text(config, "tracking.wandb.mode") == "offline" if offline is None else offline
        destination = WandbDestination(
            run,
            runs_dir=runs_dir,
            project=_text(config, "tracking.wandb.project") or DEFAULT_PROJECT,
            entity=_text(config, "tracking.wandb.entity"),
            mode="offline" if is_offline else "online",
        )
    elif kind == "tensorboard":
        destination = TensorBoardDestination(run)
    elif kind == "trackio":
        project = _text(config, "tracking.trackio.project") or DEFAULT_PROJECT
        destination = TrackioDestination(run, project=project)
    else:
        raise ConfigError(f"unknown tracker {kind!r}; use one of {', '.join(KINDS)}")
    names = _text(config, "tracking.names") or "atrium"
    return Delivery(folder=folder, kind=kind, destination=destination, names=names)


@contextmanager
def mirrored(folder: RunFolder, kinds: Sequence[str], log: Callable[[str], None]) -> Iterator[Mirrors]:
    """Yield a listener that delivers a run to trackers of these kinds during training; close it at exit."""
    mirrors = Mirrors(folder, {kind: partial(delivery_of, folder, kind) for kind in kinds}, log)
    try:
        yield mirrors
    finally:
        mirrors.close()


def _text(config: Mapping[str, object], key: str) -> str | None:
    value = setting(config, key)
    return value if isinstance(value, str) and value else None
