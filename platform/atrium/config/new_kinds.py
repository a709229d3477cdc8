"""Replacing a section's kind: settings of the old kind are dropped.

Otherwise, `algorithm=atr divergence.kind=ratio` would read KL3's budget as a clip range. Settings that all
kinds of a section share by declaration (a grader's workers, a rollout's lengths) are kept. Of the others only
typed values count, and a missing value is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from atrium.base.nested import mapping_at
from atrium.base.section import Section
from atrium.config.messages import DISCRIMINATORS, sections_at
from atrium.config.nearest import last_part

_UNDECIDED = "auto"


def typed_kinds(typed: Mapping[str, object]) -> dict[str, object]:
    """Return the typed settings that choose the kind of a section, by key."""
    return {key: value for key, value in typed.items() if "." in key and last_part(key) in DISCRIMINATORS}


def stale_keys(typed: Mapping[str, object], before: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Return the keys of `before` that typed kinds make obsolete.

    `before` holds settings of `model`, composed without the typed kinds.
    """
    return [
        key
        for chosen, value in typed_kinds(typed).items()
        for key in _stale(chosen, value, typed, before, model)
    ]


def _stale(
    chosen: str,
    value: object,
    typed: Mapping[str, object],
    before: Mapping[str, Any],
    model: type[BaseModel],
) -> Iterator[str]:
    parent, _, name = chosen.rpartition(".")
    section = mapping_at(before, parent)
    old = section.get(name)
    if old in (None, _UNDECIDED, value):
        return
    shared = _shared_settings(sections_at(parent.split("."), model))
    for setting in section:
        key = f"{parent}.{setting}"
        is_typed = any(other == key or other.startswith(f"{key}.") for other in typed)
        if setting != name and setting not in shared and not is_typed:
            yield key


def _shared_settings(kinds: Sequence[type[BaseModel]]) -> set[str]:
    """Return the settings that a common base of all kinds declares."""
    bases = set.intersection(*(set(kind.__mro__) for kind in kinds)) if kinds else set()
    return {name for base in bases if issubclass(base, Section) for name in base.model_fields}
