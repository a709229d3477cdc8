"""Removal of settings that are obsolete because an override selects a different kind for their section.

Without the removal, `algorithm=atr divergence.kind=ratio` would use KL3's budget as a clip range. Settings
from a common base class of all kinds are kept, such as the number of a grader's workers. All other settings
of the section need a default or an override. Validation reports missing settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from atrium.base.nested import mapping_at
from atrium.base.section import Section
from atrium.config.files import DISCRIMINATORS
from atrium.config.messages import sections_at
from atrium.config.nearest import last_part

_UNDECIDED = "auto"


def typed_kinds(typed: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides that select the kind of a section (`SECTION.kind` or `SECTION.engine`), by key."""
    return {key: value for key, value in typed.items() if "." in key and last_part(key) in DISCRIMINATORS}


def stale_keys(typed: Mapping[str, object], before: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Return the keys in `before` that are obsolete because an override selects a different kind.

    `typed` contains all overrides by key. `before` is the configuration composed without the overrides
    that select a kind. `model` is the class of the whole configuration.
    """
    stale = []
    for chosen, value in typed_kinds(typed).items():
        parent, _, name = chosen.rpartition(".")
        section = mapping_at(before, parent)
        if section.get(name) in (None, _UNDECIDED, value):
            continue
        shared = _shared_settings(sections_at(parent.split("."), model))
        for setting in section:
            key = f"{parent}.{setting}"
            is_typed = any(other == key or other.startswith(f"{key}.") for other in typed)
            if setting != name and setting not in shared and not is_typed:
                stale.append(key)
    return stale


def _shared_settings(kinds: Sequence[type[BaseModel]]) -> set[str]:
    """Return the names of the settings that a common base class of all `kinds` declares."""
    bases = set.intersection(*(set(kind.__mro__) for kind in kinds)) if kinds else set()
    return {name for base in bases if issubclass(base, Section) for name in base.model_fields}
