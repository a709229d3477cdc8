"""The rendezvous of one machine's processes: a store that listens on the loopback address only."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from atrium.launch.addresses import LOOPBACK, listen


def store_at(host: str, port: int, timeout: timedelta) -> TCPStore | None:
    """Return a torch store that this process serves at the given host and port only.

    Returns None if the process cannot listen there.
    """
    listener = listen(host, port)
    if listener is None:
        return None
    port = listener.getsockname()[1]
    # The store closes the socket. With only a port, the store would listen on all addresses of the machine.
    return TCPStore(host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


class SingleNode(StaticTCPRendezvous):
    """The rendezvous of torchrun's agent on a single node.

    The agent uses the given store instead of creating one. Nothing in the store is unpickled.
    """

    def __init__(self, store: TCPStore) -> None:
        super().__init__(LOOPBACK, store.port, rank=0, world_size=1, run_id="atrium", timeout=0)
        self._own_store = store
        self._num_rounds = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store's address, and the store with a new key prefix for each start of the ranks."""
        self._num_rounds += 1
        part = PrefixStore(f"round/{self._num_rounds}", self._own_store)
        return RendezvousInfo(part, 0, 1, RendezvousStoreInfo(LOOPBACK, self._own_store.port))
