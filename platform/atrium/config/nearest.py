"""Text for error messages: the valid name nearest to a wrong name, and values in YAML notation."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

_CUTOFF = 0.6
_MAX_SHOWN = 60
MAX_LISTED = 12
"""Largest number of valid names in a message that also suggests the nearest one, and of kinds in any."""
_SHORT = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "steps": "num_steps",
    "max_steps": "num_steps",
    "epochs": "num_epochs",
    "warmup_steps": "num_warmup_steps",
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "num_generations": "group_size",
    "batch_size": "num_prompts",
    "temp": "temperature",
    "clip_range": "delta",
}
"""Names of settings in other programs, with the names in Atrium."""


def nearest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """Return the known name that is most similar to `name`, or None if no name is similar.

    Case is ignored. A name with the same letters in another order is preferred. `cutoff` is the minimum
    similarity (0 to 1) of names that count as similar.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, cutoff=cutoff)
    swapped = [candidate for candidate in close if sorted(candidate) == sorted(name.lower())]
    return by_lower[(swapped or close)[0]] if close else None


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known dotted key that is most similar to `key`, or None if no key is similar.

    If the last part of `key` is another program's name, such as `lr`, it is first replaced by Atrium's name,
    such as `learning_rate`. A known key with the same last part is preferred, such as `divergence.delta` for
    `delta`. If there are several, the one with the fewest parts is returned. Otherwise, a similar key in the
    same section is preferred, and then a key with a similar last part. Whole keys are compared only if no
    known key is in the section of `key`. The order of `known` does not matter.
    """
    keys = sorted(known, key=lambda candidate: (-candidate.count("."), candidate))
    parent, _, last = key.rpartition(".")
    last = _SHORT.get(last, last)
    by_last = {last_part(candidate): candidate for candidate in keys}
    siblings = {last_part(candidate): candidate for candidate in keys if _parent(candidate) == parent}
    if last in by_last:
        return by_last[last]
    if (found := nearest(last, siblings)) is not None:
        return siblings[found]
    if (found := nearest(last, by_last, cutoff=0.85)) is not None:
        return by_last[found]
    return nearest(key, keys) if not siblings else None


def is_named(key: str, name: str) -> bool:
    """Return whether `name` refers to `key`.

    This is the case if both have the same last part, or if `name` is another program's name for `key`,
    such as `lr` for `optimizer.learning_rate`.
    """
    last = last_part(name)
    return last_part(key) in (last, _SHORT.get(last))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the nearest known name, or empty text if no name is similar."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found is not None else ""


def _parent(key: str) -> str:
    return key.rpartition(".")[0]


def last_part(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def shown(value: object) -> str:
    """Return a value in YAML notation on one line. A long value is truncated."""
    if isinstance(value, str):
        is_plain = bool(value) and value.isprintable() and value == value.strip()
        text = value if is_plain else json.dumps(value)
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
