"""Settings of jobs: the section `compute.slurm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.section import Count, CountOrZero, Section, Text


class SlurmSettings(Section):
    """What a SLURM job asks for; null is the cluster's own default."""

    executor: Literal["slurm", "local"] = "slurm"
    """Who runs the job: SLURM, or a process of this machine, to try what would be submitted."""
    partition: Text | None = None
    """The partition."""
    account: Text | None = None
    """The account that pays."""
    time_minutes: Count = 240
    """Minutes after which SLURM ends the job."""
    memory_gb: Count | None = None
    """Gigabytes of main memory on each node."""
    cpus_per_node: Count | None = None
    """CPU cores on each node."""
    signal_lead_s: Annotated[int, Field(ge=1, le=65_535)] = 120
    """Seconds before the end of its time in which a job is told to save a checkpoint."""
    max_requeues: CountOrZero = 3
    """How often a job that ran out of time is submitted again by itself; preemption is not counted."""
    max_parallel: Count | None = None
    """Jobs of a grid that run at once; null leaves it to SLURM, and to the cores of this machine if local."""
    setup: tuple[Text, ...] = ()
    """Lines of shell that the job's script runs first, such as `module load cuda`."""
    extra: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """Other parameters of sbatch by their long names, such as {qos: high}."""
