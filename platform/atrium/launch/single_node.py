"""How the processes of one machine meet: at one store, which listens on the loopback alone."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from atrium.launch.addresses import LOOPBACK, listen


def store_at(host: str, port: int, timeout: timedelta) -> TCPStore | None:
    """torch's store, kept by this process at one address and no other; None where it cannot listen there."""
    listener = listen(host, port)
    if listener is None:
        return None
    port = listener.getsockname()[1]
    # The store closes the socket. Told only a port, it would listen on all addresses of the machine.
    return TCPStore(host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


class SingleNode(RendezvousHandler):
    """Tells torchrun's agent that its node is the only one. Nothing that the store holds is unpickled."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store
        self._num_rounds = 0

    @property
    def use_agent_store(self) -> bool:
        """Ranks connect to the store that there is, rather than open one."""
        return True

    def get_backend(self) -> str:
        """Its name in torchrun's messages."""
        return "single_node"

    def get_run_id(self) -> str:
        """Of no meaning: no other run can reach this store."""
        return "atrium"

    def next_rendezvous(self) -> RendezvousInfo:
        """The store's part of this start of the ranks, and where ranks find the store."""
        self._num_rounds += 1
        part = PrefixStore(f"round/{self._num_rounds}", self._store)
        return RendezvousInfo(part, 0, 1, RendezvousStoreInfo(LOOPBACK, self._store.port))

    def num_nodes_waiting(self) -> int:
        """None: there is no other node."""
        return 0

    def is_closed(self) -> bool:
        """Never: ranks may start again as often as the agent lets them."""
        return False

    def set_closed(self) -> None:
        """Nothing has to be told to anyone."""

    def shutdown(self) -> bool:
        """The store lives as long as this process."""
        return True
