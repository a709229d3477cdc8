"""Settings of a run's processes: those of the section `compute` that start them, and `compute.slurm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.section import Count, CountOrZero, Parallel, Section, Text, Wait


class SlurmSettings(Section):
    """What a SLURM job asks for; null is the cluster's own default."""

    executor: Literal["slurm", "local"] = "slurm"
    """Who runs the job: SLURM, or a process of this machine, to try what would be submitted."""
    partition: Text | None = None
    """The SLURM partition that jobs are submitted to."""
    account: Text | None = None
    """The SLURM account that is charged."""
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
    max_parallel: Parallel | None = None
    """Jobs of a grid that run at once; null leaves it to SLURM, and to the cores of this machine if local."""
    setup: tuple[Text, ...] = ()
    """Lines of shell that the job's script runs first, such as `module load cuda`."""
    extra: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """Other parameters of sbatch by their long names, such as {qos: high}."""


class NodeSettings(Section):
    """The processes of a run: how many, where they meet, and what is done when one dies."""

    num_processes: Parallel = 1
    """Processes of the run on each node, one per GPU where there are any; above 1, torchrun starts them."""
    num_nodes: Parallel = 1
    """Machines that share the run; the command is given on each, or once with slurm."""
    rendezvous: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = None
    """Where the nodes meet: host:port of one of them; null on one node, and with slurm."""
    allow_public_rendezvous: bool = False
    """Whether several nodes may meet at a public address: whoever reaches it can run code in the run."""
    max_restarts: CountOrZero = 0
    """How often processes that died are started again by themselves, from the last checkpoint."""
    timeout_s: Wait = 1800.0
    """Seconds in one phase after which a process counts as hung, and the run ends."""
    slurm: SlurmSettings | None = None
    """The SLURM job that the run is submitted as; null runs it here."""
