"""Settings of a run's processes: those of the section `compute` that start them, and `compute.slurm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.section import Count, CountOrZero, Parallel, Section, Text, Wait


class SlurmSettings(Section):
    """Resources of a SLURM job; null is the cluster's own default."""

    executor: Literal["slurm", "local"] = "slurm"
    """Executor of the job: SLURM, or a process of this machine, to try the submission."""
    partition: Text | None = None
    """The SLURM partition that jobs are submitted to."""
    account: Text | None = None
    """The SLURM account that is charged."""
    time_minutes: Count = 240
    """Time limit in minutes, after which SLURM ends the job."""
    memory_gb: Count | None = None
    """Main memory per node in gigabytes."""
    cpus_per_node: Count | None = None
    """Number of CPU cores per node."""
    signal_lead_s: Annotated[int, Field(ge=1, le=65_535)] = 120
    """Seconds before the end of its time at which a job is told to save a checkpoint."""
    max_requeues: CountOrZero = 3
    """Number of times that a job which ran out of time is resubmitted automatically; preemptions are not
    counted."""
    max_parallel: Parallel | None = None
    """Maximum number of jobs of a grid that run at once; null leaves it to SLURM, or to this machine's cores
    if local."""
    setup: tuple[Text, ...] = ()
    """Shell lines that the job's script runs first, such as `module load cuda`."""
    extra: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """Other parameters of sbatch by their long names, such as {qos: high}."""


class NodeSettings(Section):
    """The processes of a run: their number, their rendezvous, and the reaction if one dies."""

    num_processes: Parallel = 1
    """Number of processes of the run on each node, one per GPU if there are any; above 1, torchrun starts
    them."""
    num_nodes: Parallel = 1
    """Number of machines that share the run; the command is given on each, or once with slurm."""
    rendezvous: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = None
    """Rendezvous of the nodes: host:port of one of them; null on one node, and with slurm."""
    allow_public_rendezvous: bool = False
    """Whether several nodes may use a public rendezvous address; anyone who can reach it can run code in the
    run."""
    max_restarts: CountOrZero = 0
    """Number of times that dead processes are restarted automatically, from the last checkpoint."""
    timeout_s: Wait = 1800.0
    """Timeout in seconds for one phase, after which a process counts as hung and the run ends."""
    slurm: SlurmSettings | None = None
    """SLURM job that the run is submitted as; null runs it here."""
