"""How ranks that share one vLLM on a CPU exchange tensors: through gloo.

vLLM's own way there is shared memory, with two faults. Its name is the same for all runs of a machine. And
a rank waits in a loop that only an answer ends, so that it never learns of another's death, at which gloo's
connections break. vLLM imports this module by its name.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher


class GlooExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]  # vLLM has no types here
    """vLLM's executor of one rank among others that a launcher started, without its shared memory."""

    def _distributed_args(self) -> tuple[str, int, int]:
        """As in vLLM; the process group is there already, and the address only names the shared memory.

        Shared memory is used where all ranks that share the engine give it one name, which they do not here.
        """
        address, rank, local_rank = super()._distributed_args()
        return f"{address}:{rank}", rank, local_rank
