"""Functions that build the engine in this process or as vLLM servers, as `rollout.placement` selects."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from atrium.assemble.engines import build_engine, vllm_place
from atrium.assemble.memory import reads_rounded_weights
from atrium.assemble.run import Run
from atrium.assemble.shapes import exact_shape
from atrium.base.errors import ConfigError, reason_of
from atrium.config.machine import visible_gpus
from atrium.config.schema import RunConfig
from atrium.engines.engine import Engine
from atrium.engines.server.client import Expected, ServerClient
from atrium.engines.server.engine import ServerEngine
from atrium.engines.server.guard import TOKEN
from atrium.engines.server.plugin import identity, is_alive
from atrium.engines.server.pool import Server, ServerPool
from atrium.engines.server.process import (
    SERVER_MODULE,
    ServerProcess,
    server_arguments,
    server_environment,
)
from atrium.engines.server.transfer import NcclSender
from atrium.engines.server.weights import WeightFiles
from atrium.engines.settings import VllmSettings
from atrium.engines.vllm_start import Place, model_config, model_folder
from atrium.models.lora import base_weights
from atrium.models.policy import Policy, build_random_policy
from atrium.models.settings import HubModelSettings
from atrium.models.sources import locate
from atrium.models.tiny import build_tokenizer
from atrium.train.ranks.ranks import Ranks

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _OWNER = "atrium-", "owner"


def build_placed_engine(run: Run, policy: Policy) -> Engine:
    """Build this rank's engine with the policy's weights, inside this process or as servers.

    In a run with one process, an engine inside the process samples from the policy's own module if
    possible. Servers that this process starts write their output to files in the run directory.
    """
    if run.config.rollout.placement == "inside":
        return build_engine(run.config.rollout, run.config, policy, shares_model=run.ranks.is_alone)
    return _server_engine(run, policy)


def engine_devices(config: RunConfig, ranks: Ranks) -> tuple[tuple[str | None, ...], ...]:
    """Return the GPUs of each server that this rank starts, one GPU for each process of the server.

    On a CPU, each process has None instead of a GPU. The result is empty if `rollout.servers` gives addresses
    of running servers. Raises `ConfigError` if there are too few GPUs.
    """
    rollout, gpus = config.rollout, visible_gpus()
    if rollout.servers:
        return ()
    num_servers, num_each = rollout.num_servers // ranks.size, rollout.processes_per_engine
    if config.compute.device != "cuda":
        return ((None,) * num_each,) * num_servers
    num_own, first = num_servers * num_each, ranks.local_size
    chosen = rollout.devices or tuple(range(first, first + ranks.local_size * num_own))
    if max(chosen) >= len(gpus):
        raise ConfigError(
            f"rollout.num_servers={rollout.num_servers}: the servers would use the GPUs "
            f"{', '.join(map(str, chosen))}, but there are only {len(gpus)} GPUs, {first} of them for "
            "the trainer; choose other GPUs with rollout.devices, or rollout.placement=inside"
        )
    own = [gpus[place] for place in chosen[ranks.local_rank * num_own :][:num_own]]
    return tuple(tuple(own[number * num_each :][:num_each]) for number in range(num_servers))


def _server_engine(run: Run, policy: Policy) -> ServerEngine:
    """Build the engine that starts the servers of this rank, or connects to servers at given addresses."""
    config, ranks, rollout = run.config, run.ranks, run.config.rollout
    assert isinstance(rollout, VllmSettings)
    joined, devices = _joined(rollout, ranks), engine_devices(config, ranks)
    weights = _private_folder(Path(rollout.weights_dir) if rollout.weights_dir else _SHARED_MEMORY)
    sockets = _private_folder(Path(tempfile.gettempdir()), setting="TMPDIR")
    place = vllm_place(config, rollout.longest(policy.context_length))
    rounded = torch.bfloat16 if reads_rounded_weights(config) else None
    files = WeightFiles(weights, model_config(policy.model), rounded, rollout.num_kept_weights)
    pool = ServerPool(
        joined or _started(run, policy, place, (weights, sockets), devices),
        expected=Expected(
            model=policy.model.config.to_dict(), dtype=place.dtype, context_length=place.context_length
        ),
        is_continuous=rollout.continuous,
        start_timeout_s=rollout.start_timeout_s,
        hang_timeout_s=rollout.step_timeout_s,
        log=run.log,
    )
    return ServerEngine(
        policy,
        pool,
        files=files,
        per_server=rollout.max_num_seqs,
        context_length=place.context_length,
        folders=(weights, sockets),
        sender=_sender(config, policy, rounded) if rollout.sends_weights else None,
    )


def _sender(config: RunConfig, policy: Policy, rounded: torch.dtype | None) -> NcclSender:
    rollout: Any = config.rollout
    # NCCL listens on the network only if servers run on other machines.
    if config.compute.num_nodes == 1 and not rollout.sends_weights_afar:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    device, timeout_s = policy.model.device, rollout.step_timeout_s
    return NcclSender(base_weights(policy.model), rounded, device=device, timeout_s=timeout_s)


def _joined(rollout: VllmSettings, ranks: Ranks) -> list[Server]:
    """Return this rank's share of the servers in `rollout.servers`.

    The list is empty if no addresses are given. Raises `ConfigError` if addresses are given, but the servers'
    access token is not in the environment.
    """
    token = os.environ.get(TOKEN, "")
    if rollout.servers and not token:
        raise ConfigError(
            f"rollout.servers requires the servers' token in the environment variable {TOKEN}; set "
            f"{TOKEN} to the token that the servers were started with"
        )
    return [
        Server(name=f"server {url}", client=ServerClient(url, token), process=None)
        for url in rollout.servers[ranks.rank :: ranks.size]
    ]


def _started(
    run: Run,
    policy: Policy,
    place: Place,
    folders: tuple[Path, Path],
    devices: tuple[tuple[str | None, ...], ...],
) -> list[Server]:
    """Return this rank's servers, one per entry of `devices`; `ServerPool` starts their processes later.

    `folders` are the folders for the weights and the sockets.
    """
    config: RunConfig = run.config
    rollout: Any = config.rollout
    weights, sockets = folders
    logs = run.folder.engines_dir
    logs = logs if run.ranks.is_alone else logs / f"rank-{run.ranks.rank}"
    logs.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(32)
    cache_dir = Path(config.runs_dir) / ".cache"
    arguments = server_arguments(str(model_folder(policy.model, cache_dir)), rollout, place, ())
    variables = server_environment(rollout, place, cache_dir, config.compute.num_threads)
    servers = []
    for number, of_server in enumerate(devices):
        process = ServerProcess(
            number,
            arguments,
            variables=variables,
            folder=sockets,
            shared=(weights,),
            token=token,
            log=(logs / f"server-{number}.log").absolute(),
            device=",".join(name for name in of_server if name is not None) or None,
        )
        client = ServerClient(process.address, token)
        servers.append(Server(name=f"server {number}", client=client, process=process))
    return servers


def engine_command(config: RunConfig, host: str, port: int) -> tuple[str, Path | None]:
    """Return (command, folder), where the shell command starts a server at `host` and `port`.

    The server reads the model's configuration from the folder. The folder is None for a pretrained model,
    which the server loads from its source.
    """
    rollout, model = config.rollout, config.model
    assert isinstance(rollout, VllmSettings)
    length = exact_shape(config).context_length
    place = vllm_place(config, rollout.longest(length) if length else rollout.context_length or 0)
    address, folder = ["--host", host, "--port", str(port)], None
    cache_dir = Path(config.runs_dir) / ".cache"
    if isinstance(model, HubModelSettings) and model.weights == "pretrained":
        name = locate(model.source, model.revision)
        name = str(Path(name).absolute()) if Path(name).is_dir() else name
        address += [] if model.revision is None else ["--revision", model.revision]
    else:
        made = build_random_policy(
            model.architecture or {}, tokenizer=build_tokenizer(), seed=0, device="meta"
        )
        folder = model_folder(made.model, cache_dir)
        name = str(folder)
    variables = server_environment(rollout, place, cache_dir, config.compute.num_threads)
    words = ["python", "-m", SERVER_MODULE, *server_arguments(name, rollout, place, address)]
    token = f'{TOKEN}="${{{TOKEN}:?must hold a secret that you choose}}"'
    assigned = [f"{variable}={shlex.quote(value)}" for variable, value in variables.items()]
    return " ".join([token, *assigned, shlex.join(words)]), folder


def _private_folder(parent: Path, setting: str = "rollout.weights_dir") -> Path:
    """Create a folder in `parent` that other users cannot read.

    `setting` is the setting or environment variable that determines `parent`; error messages name it. Folders
    left in `parent` by trainers that were killed on this machine are deleted.
    """
    with suppress(OSError):  # such as a folder that another run is deleting
        for owner in parent.glob(f"{_PREFIX}*/{_OWNER}"):
            host, _, process = owner.read_text(encoding="utf-8").partition(" ")
            if host == socket.gethostname() and not is_alive(process):
                shutil.rmtree(owner.parent, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (folder / _OWNER).write_text(f"{socket.gethostname()} {identity(os.getpid())}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{setting}: a folder cannot be created in {parent} ({reason_of(error)}); choose a "
            "folder that the servers can read"
        ) from error
    return folder
