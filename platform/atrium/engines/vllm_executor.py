"""Tensor exchange through gloo between ranks that share one vLLM on a CPU.

vLLM itself uses shared memory here, with two faults. Its name is the same for all runs of a machine. And a
rank waits in a loop that only a reply ends, so it does not notice the death of another rank, which breaks
gloo's connections. vLLM imports this module by its name.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher


class GlooExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]  # vLLM has no types here
    """A vLLM executor for one of several ranks started by a launcher; it uses no shared memory."""

    def _distributed_args(self) -> tuple[str, int, int]:
        """Return vLLM's arguments with the rank appended to the address.

        The process group exists already, so the address only names the shared memory. vLLM uses it only if
        all ranks of the engine give it the same name; a name per rank turns it off.
        """
        address, rank, local_rank = super()._distributed_args()
        return f"{address}:{rank}", rank, local_rank
