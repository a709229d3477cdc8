"""Random seeds derived from the purpose of each choice rather than from a shared stream.

A choice is keyed by (seed, purpose, indices), so its outcome does not depend on earlier draws, and a resumed
run needs no generator state.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, *indices: int | str) -> int:
    """Return a 63-bit seed for one purpose, stable across processes, platforms and versions.

    Parameters
    ----------
    seed
        The run's seed.
    purpose
        The purpose of the choice, e.g. `"minibatch_order"`; different purposes are independent.
    indices
        Indices that distinguish choices of one purpose: step, problem, sample.
    """
    key = "\x1f".join([str(seed), purpose, *(str(index) for index in indices)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
