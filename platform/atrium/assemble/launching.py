"""Functions that check a node, create the run directory, and start the processes of a run.

A local run with one process and without restarts needs no launcher. For other local runs, this process runs
torchrun's agent, which starts and monitors the processes of its node. A SLURM job runs the same command, with
the agent, on each of its nodes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from atrium.base import plugins
from atrium.base.errors import ConfigError
from atrium.config.compose import to_json
from atrium.config.dates import dated
from atrium.config.machine import num_usable_cores, visible_gpus
from atrium.config.schema import RunConfig
from atrium.launch.addresses import check_rendezvous
from atrium.launch.gpus import gpu_models
from atrium.launch.rank_logs import ranks_dir
from atrium.launch.slurm import JobSettings, Submission, check_settings, job_script, raise_for
from atrium.launch.slurm_task import RENDEZVOUS_VARIABLE, RUN_FILE_VARIABLE
from atrium.runs.run_folder import RunFolder
from atrium.views.live.log_display import StandardOutput


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this process as a rank of a run; a rank starts no other processes."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def is_started_here(config: RunConfig) -> bool:
    """Return whether this process trains, rather than starting other processes or a SLURM job for training.

    A process trains if it is a rank. It also trains if its run has only one process, unless the run is a
    SLURM job or may be restarted after a failure (`compute.max_restarts`).
    """
    compute = config.compute
    return is_rank() or not (compute.is_launched or compute.slurm is not None)


def start(config: RunConfig, overrides: Sequence[str], arguments: Sequence[str]) -> None:
    """Start the processes of a run on this node, or submit it as a SLURM job, and wait until it has ended.

    `arguments` are the arguments with which the SLURM job calls `atrium train`. If the run fails, its error
    is raised.
    """
    if config.compute.slurm is not None and RUN_FILE_VARIABLE not in os.environ:
        submit([(config, arguments)])
    else:
        launch(config, overrides)


def submit(jobs: Sequence[tuple[RunConfig, Sequence[str]]]) -> None:
    """Submit SLURM jobs and wait until they have ended.

    Each job is given by its configuration and the arguments with which it calls `atrium train`. Raises
    `ConfigError` if a job is not for SLURM, or if the jobs need different resources. If a job fails, its
    error is raised.
    """
    config = jobs[0][0]
    if any(other.compute.slurm is None for other, _ in jobs):
        raise ConfigError(
            "--multirun cannot mix SLURM jobs and local runs; use compute=slurm for all jobs or for none"
        )
    settings = _job_settings(config)
    if any(_job_settings(other) != settings for other, _ in jobs):
        raise ConfigError(
            "--multirun requires equal resources for all jobs; use equal values of compute.slurm, "
            "compute.num_processes, compute.num_nodes and the placement of engines"
        )
    cache_dir = Path(config.runs_dir) / ".cache"
    submission = Submission([arguments for _, arguments in jobs], settings, cache_dir, StandardOutput())
    raise_for(submission.follow())


def print_script(config: RunConfig) -> None:
    """Print the sbatch script of the run; raise `ConfigError` if the run is not a SLURM job."""
    if config.compute.slurm is None:
        raise ConfigError(
            "--print-script prints a SLURM job, so it requires compute=slurm; add compute=slurm"
        )
    settings = _job_settings(config)
    sys.stdout.write(job_script(settings, (Path(config.runs_dir) / ".cache" / "slurm").absolute()))


def _job_settings(config: RunConfig) -> JobSettings:
    compute = config.compute
    num_gpus = config.rollout.num_gpus(compute.num_processes, compute.num_nodes)
    assert compute.slurm is not None
    slurm = compute.slurm
    if slurm.executor == "local" and slurm.max_parallel is None:
        num_threads = compute.num_processes * compute.num_threads
        slurm = slurm.model_copy(update={"max_parallel": max(1, num_usable_cores() // num_threads)})
    settings = JobSettings(
        slurm=slurm,
        num_nodes=compute.num_nodes,
        num_gpus_per_node=num_gpus if compute.device == "cuda" else 0,
    )
    check_settings(settings)
    return settings


def check_node(config: RunConfig) -> None:
    """Raise `ConfigError` if this machine does not have the GPUs that the run needs on a node.

    There must be enough GPUs for the training processes and for the servers that the run starts. The GPUs of
    the training processes must all be of the same model. A run on the CPU is not checked.
    """
    compute = config.compute
    if compute.device != "cuda":
        return
    visible = visible_gpus()
    num_gpus = config.rollout.num_gpus(compute.num_processes, compute.num_nodes)
    if num_gpus > len(visible):
        servers = " and their servers" if num_gpus > compute.num_processes else ""
        raise ConfigError(
            f"compute.num_processes={compute.num_processes}: the processes{servers} require {num_gpus} "
            f"GPUs, but this machine has {len(visible)}; lower compute.num_processes, or use a machine "
            "with more GPUs"
        )
    kinds = sorted(set(gpu_models(visible[: compute.num_processes])))
    if compute.num_processes > 1 and len(kinds) > 1:
        raise ConfigError(
            f"compute.num_processes={compute.num_processes} divides work evenly among "
            f"{', '.join(kinds)}, but all GPUs must be of one kind; choose GPUs with CUDA_VISIBLE_DEVICES"
        )


def launch(config: RunConfig, overrides: Sequence[str]) -> None:
    """Start this node's ranks and wait for their end; raise the error of a failed rank."""
    check_node(config)
    compute = config.compute
    os.environ.setdefault("OMP_NUM_THREADS", str(compute.num_threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if compute.num_nodes == 1 and sys.platform == "linux":
        # Without this, gloo and NCCL listen on an address that other machines on the network can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    rendezvous = os.environ.get(RENDEZVOUS_VARIABLE, compute.rendezvous)
    if rendezvous is not None:
        check_rendezvous(rendezvous, allow_public=compute.allow_public_rendezvous)
    # Imported late: it loads torch, and most mistakes have been found without it.
    from atrium.launch.agent import Meeting
    from atrium.launch.supervisor import NodeRun, agreed_folder

    settings = compute.model_copy(update={"rendezvous": rendezvous})
    meeting = Meeting(settings)
    path = agreed_folder(meeting, lambda: begun_run(config, overrides).path, _fingerprint(config))
    folder = RunFolder.open(path)
    if run_file := os.environ.get(RUN_FILE_VARIABLE):
        Path(run_file).write_text(str(path.absolute()), encoding="utf-8")
    where = "this machine" if compute.num_nodes == 1 else f"each of {compute.num_nodes} nodes"
    log = StandardOutput()
    log(f"launch: {compute.num_processes} processes on {where}, logs in {ranks_dir(path)}")
    command = [sys.executable, "-m", "atrium.cli.rank", str(path), *plugins.flags()]
    NodeRun(folder, settings, meeting, log).run(command)


def begun_run(config: RunConfig, overrides: Sequence[str]) -> RunFolder:
    """Create a run directory, or open that of the resumed run, and write config.json for the ranks."""
    from atrium.assemble.prepared import check_start
    from atrium.assemble.run import begin_folder, start_of, training_request

    config = dated(config, start_of(config.resume))
    if config.resume is None:
        check_start(config)
    request = training_request(config)
    folder = begin_folder(request, overrides)
    with folder.lock():  # fails if another process trains this run
        folder.write_config(request.record)
    return folder


def _fingerprint(config: RunConfig) -> str:
    """Return a hash of the configuration, the plugins and the GPU models, to be compared between nodes."""
    kinds = sorted(set(gpu_models(visible_gpus()))) if config.compute.device == "cuda" else []
    return hashlib.sha256(f"{to_json(config)}{kinds}{plugins.records()}".encode()).hexdigest()
