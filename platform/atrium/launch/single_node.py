"""The rendezvous of one machine's processes: a single store, which listens on the loopback only."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from atrium.launch.addresses import LOOPBACK, listen


def store_at(host: str, port: int, timeout: timedelta) -> TCPStore | None:
    """Return torch's store, served by this process at one address only; None if it cannot listen there."""
    listener = listen(host, port)
    if listener is None:
        return None
    port = listener.getsockname()[1]
    # The store closes the socket. Given only a port, it would listen on all addresses of the machine.
    return TCPStore(host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


class SingleNode(RendezvousHandler):
    """Tells torchrun's agent that its node is the only one. Nothing in the store is unpickled."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store
        self._num_rounds = 0

    @property
    def use_agent_store(self) -> bool:
        """Return True: ranks connect to the existing store rather than open one."""
        return True

    def get_backend(self) -> str:
        """Return its name in torchrun's messages."""
        return "single_node"

    def get_run_id(self) -> str:
        """Return an arbitrary id: no other run can reach this store."""
        return "atrium"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store's section for this start of the ranks, and the store's address."""
        self._num_rounds += 1
        part = PrefixStore(f"round/{self._num_rounds}", self._store)
        return RendezvousInfo(part, 0, 1, RendezvousStoreInfo(LOOPBACK, self._store.port))

    def num_nodes_waiting(self) -> int:
        """Return 0: there is no other node."""
        return 0

    def is_closed(self) -> bool:
        """Return False: ranks may restart as often as the agent allows."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no other node to inform."""

    def shutdown(self) -> bool:
        """Return True; the store lives as long as this process."""
        return True
