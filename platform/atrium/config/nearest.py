"""The nearest valid name for a wrong one, and values as a person would type them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

_CUTOFF = 0.6
_MAX_SHOWN = 60
MAX_LISTED = 12
"""Number of names beyond which a message suggests only the nearest."""
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
"""Settings by the names that other programs use."""


def nearest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """Return the known name most similar to `name`, ignoring case, or None if none is similar.

    Swapped letters count as more similar than wrong ones.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, cutoff=cutoff)
    swapped = [candidate for candidate in close if sorted(candidate) == sorted(name.lower())]
    return by_lower[(swapped or close)[0]] if close else None


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known dotted key most similar to `key`: by its last part, or within its section.

    So `delta` finds `divergence.delta`; of several equal last parts the shallowest key wins. Equally similar
    keys are tried in alphabetical order, so that messages are deterministic.
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
    """Return whether `name` is the last part of the key, or another program's name for it."""
    last = last_part(name)
    return last_part(key) in (last, _SHORT.get(last))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?`, or an empty text if no known name is similar."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found is not None else ""


def _parent(key: str) -> str:
    return key.rpartition(".")[0]


def last_part(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def shown(value: object) -> str:
    """Return a value as YAML writes it, on one line and truncated if it is long."""
    if isinstance(value, str):
        is_plain = bool(value) and value.isprintable() and value == value.strip()
        text = value if is_plain else json.dumps(value)
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
