"""Which colour a method has: the same in every view, report and figure, whatever else they show.

A place says hue and dashes: hues go round every `NUM_HUES` places, and every round has dashes of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import count

NUM_HUES = 8
_USUAL = ("atr", "grpo", "reinforce", "dapo", "gspo", "clip_higher", "cispo", "dr_grpo")
"""The methods that are compared most: no two of them want one hue."""


def places(method_by_name: Mapping[str, str]) -> dict[str, int]:
    """The place of each of the names, by its method; those named earlier have the first choice.

    A method gets the hue that it always gets, unless another of these methods has it: then the next free one,
    and once all hues are taken its own one again, with the next dashes.

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
