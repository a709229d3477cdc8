"""Random seeds for individual random choices, instead of one shared random stream.

The seed of a choice is derived from the run's seed, the purpose, and indices. The choice therefore does not
depend on earlier ones, and a resumed run needs no stored generator state.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, *indices: int | str) -> int:
    """Return a 63-bit random seed for one choice, identical across processes, versions and platforms.

    Parameters
    ----------
    seed
        The run's seed.
    purpose
        The purpose of the choice, such as `"minibatch_order"`. Seeds for different purposes are independent.
    indices
        Indices that distinguish choices with the same purpose, such as the step, problem or sample.
    """
    key = "\x1f".join([str(seed), purpose, *(str(index) for index in indices)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
