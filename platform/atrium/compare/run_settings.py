"""Settings of runs as flat text: the keys in which runs differ, and labels made of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from atrium.runs.method_settings import tells_methods_apart

Settings = Mapping[str, str]
"""Settings by dotted key, every value as text (`nested.flattened_text`)."""

SEED = "seed"
ABSENT = "null"


def _dots(key: str) -> list[int]:
    return [place for place, character in enumerate(key) if character == "."]


@lru_cache(maxsize=64)
def _sections(keys: tuple[str, ...]) -> frozenset[str]:
    """Return the dotted names of all sections that contain the keys. The result is cached."""
    return frozenset(key[:place] for key in keys for place in _dots(key))


def differing(runs: Sequence[Settings]) -> list[str]:
    """Return the keys in which the runs differ, in the order in which they first appear.

    A key differs if two runs record different values. A key that some run lacks also differs if this run has
    a section under the key, a value in place of a section that contains the key, or the key's section with
    another `kind`. Otherwise, a missing key, such as a setting introduced by a later version, is not a
    difference.
    """
    shapes = [tuple(run) for run in runs]
    known = dict.fromkeys(shapes)
    keys = dict.fromkeys(key for shape in known for key in shape)
    first: dict[str, str] = {}
    for run in runs:
        first.update((key, run[key]) for key in run.keys() - first.keys())
    changed = {key for run in runs for key, _ in run.items() - first.items()}
    recorded = set(keys).intersection(*known)
    sections = [_sections(shape) for shape in shapes]
    return [
        key for key in keys if key in changed or (key not in recorded and _is_elsewhere(key, runs, sections))
    ]


def _is_elsewhere(key: str, runs: Sequence[Settings], sections: Sequence[frozenset[str]]) -> bool:
    """Return whether some run that lacks `key` has a setting that conflicts with it.

    Such a setting is a section under the key, a value in place of a section that contains the key, or another
    `kind` of the key's section. `sections` contains the `_sections` of each run.
    """
    kind = f"{key.rpartition('.')[0]}.kind"
    kinds = {run.get(kind) for run in runs if key in run}
    parents = [key[:place] for place in _dots(key)]
    return any(
        key in own or any(parent in run for parent in parents) or (kind in run and run[kind] not in kinds)
        for run, own in zip(runs, sections, strict=True)
        if key not in run
    )


def method_keys(runs: Sequence[Settings], *, at_last_step: bool = False) -> list[str]:
    """Return the keys in which the runs' methods differ.

    If `at_last_step` is set, the runs are compared at their last steps, so the run length is part of the
    method.
    """
    return [key for key in differing(runs) if tells_methods_apart(key, at_last_step=at_last_step)]


def labels(keys: Sequence[str], groups: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return labels that tell all groups apart, keyed by the groups' values of `keys`.

    Absent values are omitted and numbers are rounded to four significant digits, unless two groups would then
    have the same label.
    """
    told = list(dict.fromkeys(groups))
    for is_short in (True, False):
        found = {values: label(keys, values, is_short=is_short) for values in told}
        if len(set(found.values())) == len(found):
            break
    return found


def label(keys: Sequence[str], values: Sequence[str], *, is_short: bool = False) -> str:
    """Return a label such as `atr · delta 0.02`.

    A value that is not a word follows the last part of its key. With `is_short`, absent values are omitted
    and numbers are rounded to four significant digits, unless all values are absent. Without keys, the label
    is `all runs`.
    """
    is_short = is_short and any(value != ABSENT for value in values)
    parts = [
        value if _is_word(value) else f"{key.rpartition('.')[2]} {short_number(value) if is_short else value}"
        for key, value in zip(keys, values, strict=True)
        if not (is_short and value == ABSENT)
    ]
    # algorithm.name and the kinds of its parts often repeat one word, such as `atr`.
    return " · ".join(dict.fromkeys(parts)) or "all runs"


def short_number(value: str) -> str:
    """Format a number briefly, such as `3e-4` or `0.02314`. Whole numbers and other text are unchanged.

    >>> [short_number(text) for text in ("0.0003", "0.023143551", "1e-05", "0.2", "512", "kl3")]
    ['3e-4', '0.02314', '1e-5', '0.2', '512', 'kl3']
    """
    try:
        number = float(value)
    except ValueError:
        return value
    if value.lstrip("-").isdecimal() or not math.isfinite(number):
        return value
    if 0.0 < abs(number) < 0.01:
        digits, _, exponent = f"{number:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{number:.4g}" if len(value) > 6 else value


def _is_word(value: str) -> bool:
    return value[:1].isalpha() and value not in ("true", "false", "null")
