"""At which addresses the processes of a run meet, and which of them the rest of the world can reach.

Whoever reaches torchrun's store can run code in the run: torchrun unpickles what stands there, and it asks
nobody for a password.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from atrium.base.errors import ConfigError

LOOPBACK = "127.0.0.1"
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_rendezvous(rendezvous: str, *, allow_public: bool) -> None:
    """Raise `ConfigError` where `rendezvous`, host:port, has no such port or an address that is public."""
    host, _ = host_and_port(rendezvous, f"compute.rendezvous={rendezvous}")
    public = public_address(host)
    if public is not None and not allow_public:
        raise ConfigError(
            f"compute.rendezvous={rendezvous}: {public} is a public address, and whoever reaches the port "
            "can run code in the run; name an address of the nodes' own network, or set "
            "compute.allow_public_rendezvous=true where a firewall keeps others out"
        )


def host_and_port(address: str, named: str) -> tuple[str, int]:
    """The parts of host:port; raises `ConfigError`, which calls the address `named`, for no such port."""
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 65_536:
        raise ConfigError(f"{named}: {port} is no port; allowed is 1 to 65535")
    return host.strip("[]"), int(port)


def public_address(host: str) -> str | None:
    """The first address of a name, or the address itself, that all the world may reach; None for none."""
    found = [address for _, address in _addresses(host) if ipaddress.ip_address(address).is_global]
    return found[0] if found else None


def listen(host: str, port: int) -> socket.socket | None:
    """A socket that listens at this address alone; None where it is taken, or another machine's.

    None also where this machine knows itself by that name on its loopback only, where others do not reach it.
    """
    is_loopback_meant = host == "localhost" or is_loopback(host)
    for family, address in _addresses(host):
        if is_loopback(address) and not is_loopback_meant:
            continue
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                return None
    return None


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses that a name stands for here; none where nobody knows it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, str(place[0])) for family, _, _, _, place in found]


def is_loopback(host: str) -> bool:
    """Whether an address reaches this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
