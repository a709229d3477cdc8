"""Joining the Ray cluster that engines live on, which somebody has started; none is started here.

Whoever reaches a cluster's ports can run code on its machines. Ray listens on all of a machine's addresses,
whichever it is given, so a cluster has to ask for a token and to lie in a network of its own, or be allowed
by name.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import psutil

from atrium.errors import ConfigError
from atrium.launch.addresses import host_and_port, is_loopback, public_address
from atrium.rollout.declaration import EngineSettings

_REACH_TIMEOUT_S, _PROBE_TIMEOUT_S = 5.0, 60.0
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # what it says of engines that died, which we say ourselves
    "RAY_NUM_REDIS_GET_RETRIES": "5",  # seconds in which a cluster has to take us
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what becomes the default; else it warns that it will
}


def check_cluster(rollout: EngineSettings) -> None:
    """Raise `ConfigError` where no cluster answers, or it is open to others; it takes seconds."""
    address, named = _address(rollout)
    host, port = host_and_port(address, named)
    if not rollout.allow_open_cluster:
        _check_private(named, [host])
    try:
        socket.create_connection((host, port), _REACH_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"{named}: no Ray cluster answers there ({error.strerror or error}); start one by `ray start "
            "--head` as docs/scaling.md shows, or choose rollout.placement=beside"
        ) from None
    if not _takes(address, _mode(address)):
        raise ConfigError(
            f"{named}: Ray does not answer there, or not with this token; give RAY_AUTH_TOKEN, "
            "RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token as each machine of the cluster has it"
        )
    if not rollout.allow_open_cluster and _takes(address, "disabled"):
        raise ConfigError(
            f"{named}: this cluster asks for no token, and whoever reaches it can run code on its machines; "
            "start it with RAY_AUTH_MODE=token, or set rollout.allow_open_cluster=true where a firewall "
            "keeps others out"
        )


def join_cluster(rollout: EngineSettings) -> None:
    """Join the cluster as `check_cluster` allows it; raises `ConfigError` where that cannot be.

    Ray's own output stays off, and this process keeps its signal handlers.
    """
    check_cluster(rollout)
    address, named = _address(rollout)
    os.environ.update({**_ENVIRONMENT, **os.environ})
    os.environ["RAY_AUTH_MODE"] = _mode(address)
    import ray  # only now: it reads the environment when it is imported

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        with _own_signals():
            ray.init(_for_ray(address), configure_logging=False, log_to_driver=False)
    except (ConnectionError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        raise ConfigError(
            f"{named}: Ray does not let this process in ({' '.join(str(error).split())[:200]}); this machine "
            "has to belong to the cluster, too: run `ray start --address=HOST:PORT` here"
        ) from error
    if not rollout.allow_open_cluster:
        try:
            _check_private(named, _listening())
        except ConfigError:
            ray.shutdown()
            raise


def _address(rollout: EngineSettings) -> tuple[str, str]:
    """The cluster's host:port, and how messages call it."""
    if rollout.cluster_address is not None:
        return rollout.cluster_address, f"rollout.cluster_address={rollout.cluster_address}"
    address = os.environ.get("RAY_ADDRESS", "")
    if not address.rpartition(":")[2].isdecimal() or "/" in address:
        raise ConfigError(
            f"rollout.placement=cluster: RAY_ADDRESS={address} in the environment names no cluster as "
            "host:port; give rollout.cluster_address=HOST:PORT, or choose rollout.placement=beside"
        )
    return address, f"RAY_ADDRESS={address}"


def _for_ray(address: str) -> str:
    """The address as Ray takes it: it replaces 127.0.0.1 by another of the machine's, but not this."""
    host, port = host_and_port(address, address)
    is_here = host == "localhost" or is_loopback(host)
    return f"[::ffff:127.0.0.1]:{port}" if is_here else address


def _mode(address: str) -> str:
    """With which of Ray's modes of authentication this process comes: a token, unless none is asked for."""
    return os.environ.get("RAY_AUTH_MODE") or ("disabled" if _takes(address, "disabled") else "token")


@cache
def _takes(address: str, mode: str) -> bool:
    """Whether a cluster answers somebody with this mode of authentication: `token` or `disabled`."""
    asked = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", _for_ray(address)],
        env={**os.environ, **_ENVIRONMENT, "RAY_AUTH_MODE": mode},
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    return asked.returncode == 0


def _listening() -> list[str]:
    """The addresses that the joined cluster listens at, as far as they are known here."""
    import ray

    nodes = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    if all(is_loopback(node) for node in nodes):  # which nothing but a simulated cluster has
        return nodes
    own = [place.address for places in psutil.net_if_addrs().values() for place in places]
    return nodes + [address.partition("%")[0] for address in own]


def _check_private(named: str, hosts: list[str]) -> None:
    """Raise `ConfigError` where one of the cluster's addresses is public."""
    public = next((found for host in hosts if (found := public_address(host)) is not None), None)
    if public is not None:
        raise ConfigError(
            f"{named}: {public} is a public address of the cluster, and whoever reaches its ports can run "
            "code on its machines; keep it in a network of its own, or set rollout.allow_open_cluster=true "
            "where a firewall keeps others out"
        )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Take back SIGTERM, for which Ray sets a handler that exits at once."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, kept)
