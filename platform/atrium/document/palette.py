"""The colors of methods, which are the same in all views, reports and figures.

A method has a place, a number that determines its hue and its dashes. Hues repeat after `NUM_HUES` places,
with other dashes each time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import count

NUM_HUES = 8
_USUAL = ("atr", "grpo", "reinforce", "dapo", "gspo", "clip_higher", "cispo", "dr_grpo")
"""The most frequently compared methods; each has a hue of its own."""


def places(method_by_name: Mapping[str, str]) -> dict[str, int]:
    """Return a different place for each key of `method_by_name`, which maps names to methods.

    A place has the usual hue of its method, which is fixed for the most frequently compared methods and
    derived from the method's name for others. If that hue is taken, the place has the next free hue. When all
    hues are taken, they are used again with the next dashes. Names whose method has a fixed hue receive their
    places first. Otherwise, the order of the keys decides.

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
