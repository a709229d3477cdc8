"""Rendezvous addresses of a run's processes, and the check that they are not public.

Anyone who can reach torchrun's store can execute code in the run, because torchrun unpickles the store's
content and requires no password.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from atrium.base.errors import ConfigError

LOOPBACK = "127.0.0.1"
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_rendezvous(rendezvous: str, *, allow_public: bool) -> None:
    """Raise `ConfigError` if `rendezvous` (host:port) has an invalid port or a public address.

    An unspecified address (0.0.0.0 or ::) counts as public, since it means all addresses of the machine. With
    `allow_public`, public addresses are accepted.
    """
    host, _, port = rendezvous.rpartition(":")
    if not 0 < int(port) < 65_536:
        raise ConfigError(
            f"compute.rendezvous={rendezvous}: the port must be between 1 and 65535, got {port}"
        )
    public = public_address(host)
    if public is not None and not allow_public:
        is_all = ipaddress.ip_address(public).is_unspecified
        what = "means all addresses of the machine" if is_all else "is a public address"
        raise ConfigError(
            f"compute.rendezvous={rendezvous}: {public} {what}, so anyone who can reach the port can execute "
            "code in this run; use an address on the nodes' private network, or set "
            "compute.allow_public_rendezvous=true if a firewall protects the port"
        )


def public_address(host: str) -> str | None:
    """Return the first public or unspecified address that a host resolves to, or None if there is none.

    The result is also None if the name cannot be resolved.
    """
    found = (ipaddress.ip_address(address) for _, address in _addresses(host))
    return next((str(one) for one in found if one.is_global or one.is_unspecified), None)


def listen(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the given host and port only.

    Port 0 stands for any free port. Returns None if the port is in use or not permitted, if the address
    belongs to another machine, or if a host name cannot be resolved. Also returns None if a name other than
    `localhost` resolves only to the loopback address, which other machines cannot reach.
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
    """Return the addresses that a host name resolves to on this machine.

    The list is empty if the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, str(place[0])) for family, _, _, _, place in found]


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback IP address, which only this machine can reach.

    The result is False for every host name, including `localhost`.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
