"""Settings of a run's processes (a part of the section `compute`) and of SLURM jobs (`compute.slurm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.section import Count, CountOrZero, Parallel, Section, Text, Wait


class SlurmSettings(Section):
    """Resources of a SLURM job; null means the cluster's default."""

    executor: Literal["slurm", "local"] = "slurm"
    """Executor of the job: SLURM, or a process on this machine to test the submission."""
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
    """Seconds before the time limit at which a job receives the signal to save a checkpoint."""
    max_requeues: CountOrZero = 3
    """Maximum number of automatic resubmissions of a job that reaches its time limit; preemptions are not
    counted."""
    max_parallel: Parallel | None = None
    """Maximum number of jobs of a grid that run at once; null leaves the number to SLURM, or with
    `executor=local` to the number of this machine's cores."""
    setup: tuple[Text, ...] = ()
    """Shell lines that the job's script runs first, such as `module load cuda`."""
    extra: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """Other parameters of sbatch by their long names, such as {qos: high}."""


class NodeSettings(Section):
    """The processes of a run: their number, rendezvous, timeout and restarts."""

    num_processes: Parallel = 1
    """Number of processes of the run on each node, one per GPU on a GPU machine; torchrun starts them if
    there are several."""
    num_nodes: Parallel = 1
    """Number of machines that share the run; start the command on each machine, or once with slurm."""
    num_shards: Parallel | None = None
    """Number of parts into which weights, gradients and optimizer state are sharded; null for one part per
    process. If it equals the number of processes per node, each node stores a full copy, and nodes exchange
    only gradients."""
    rendezvous: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = None
    """Rendezvous of the nodes, as host:port of one of the nodes; null for a single node, and with slurm."""
    allow_public_rendezvous: bool = False
    """Whether several nodes may use a public rendezvous address; anyone who can reach it can run code in the
    run."""
    max_restarts: CountOrZero = 0
    """Maximum number of automatic restarts of dead processes, from the last checkpoint."""
    timeout_s: Wait = 1800.0
    """Timeout in seconds for one phase, after which a process counts as hung and the run ends."""
    slurm: SlurmSettings | None = None
    """SLURM job that the run is submitted as; null runs it on this machine."""
