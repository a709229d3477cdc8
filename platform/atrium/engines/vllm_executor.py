"""Tensor exchange through gloo between ranks that share one vLLM on a CPU.

By default vLLM uses shared memory, with two disadvantages: the memory's name is the same for all runs on a
machine, and a waiting rank does not notice that another rank has died. With gloo, the connection to a dead
rank breaks, which ends the wait. vLLM imports this module by its name.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher


class GlooExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]  # vLLM has no types here
    """A vLLM executor that communicates without shared memory.

    Each instance runs in one of several ranks that a launcher has started.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        """Return vLLM's (address, rank, local rank), with the rank appended to the address.

        The process group exists already, so the address only names the shared memory. vLLM uses shared
        memory only if all ranks of the engine give it the same name; a different name per rank disables it.
        """
        address, rank, local_rank = super()._distributed_args()
        return f"{address}:{rank}", rank, local_rank
