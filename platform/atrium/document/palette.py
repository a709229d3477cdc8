"""The color of a method: the same in every view, report and figure.

A place determines hue and dashes: hues repeat every `NUM_HUES` places, and every round has its own dashes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import count

NUM_HUES = 8
_USUAL = ("atr", "grpo", "reinforce", "dapo", "gspo", "clip_higher", "cispo", "dr_grpo")
"""The most frequently compared methods, which have different hues."""


def places(method_by_name: Mapping[str, str]) -> dict[str, int]:
    """Return the place of each name, by its method; earlier names have precedence.

    A method gets its usual hue, unless another of these methods has it: then the next free one, and once all
    hues are taken its own one again, with the next dashes.

    >>> places({"grpo": "grpo", "atr": "atr", "atr · delta 0.05": "atr"})
    {'grpo': 1, 'atr': 0, 'atr · delta 0.05': 2}
    """
    found: dict[str, int] = {}
    taken: set[int] = set()
    for name, method in sorted(method_by_name.items(), key=lambda one: one[1] not in _USUAL):
        hue = _hue(method)
        wanted = (NUM_HUES * turn + (hue + step) % NUM_HUES for turn in count() for step in range(NUM_HUES))
        found[name] = next(place for place in wanted if place not in taken)
        taken.add(found[name])
    return {name: found[name] for name in method_by_name}


def _hue(method: str) -> int:
    return _USUAL.index(method) if method in _USUAL else zlib.crc32(method.encode()) % NUM_HUES
