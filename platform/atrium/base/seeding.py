"""Seeds for every random choice, derived from what the choice is for rather than from a shared stream.

A choice is keyed by (seed, purpose, indices), so its outcome does not depend on how often something
else was drawn before it; a resumed run needs no generator state.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, *indices: int | str) -> int:
    """A 63-bit seed for one purpose, stable across processes, platforms and versions.

    Parameters
    ----------
    seed
        The run's seed.
    purpose
        What the choice is for, e.g. `"minibatch_order"`; different purposes are independent.
    indices
        What tells choices of one purpose apart: step, problem, sample.
    """
    key = "\x1f".join([str(seed), purpose, *(str(index) for index in indices)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
