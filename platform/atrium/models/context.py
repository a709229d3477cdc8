"""The maximum row length of a model, from the keys of its config.json. This module does not import torch.

Rope types such as `longrope` and `dynamic` choose their factors by the longest row of a batch. If this row
exceeds the original length, for which the model was trained before its context was extended, the
log-probabilities of the batch's short rows change too. The context is therefore limited to the original
length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

_LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    *("seq_length", "context_length"),
)
_WINDOW_KEY = re.compile(r"^(?!.*(pattern|layer)).*(window|chunk)")
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Context:
    """Maximum number of tokens of a prompt and its completion together, or 0 if config.json sets no limit.

    `rope_type` is the type of rotary embedding that sets this limit, or None if another key sets it.
    """

    length: int
    rope_type: str | None = None

    @classmethod
    def of(cls, keys: Mapping[str, object]) -> Self:
        """Return the context of the language model whose config.json has these keys."""
        length = next((found for name in _LENGTH_KEYS if (found := _size(keys.get(name)))), 0)
        limits = list(_rope_limits(keys, _size(keys.get(_ORIGINAL)), length))
        bounding = [limit for limit in limits if 0 < limit[0] <= (length or limit[0])]
        return cls(*min(bounding)) if bounding else cls(length)

    @property
    def reason(self) -> str:
        """A clause for messages that says why the rotary embedding limits the context.

        The clause is empty if the rotary embedding does not set the limit.
        """
        if self.rope_type is None:
            return ""
        return (
            f" (its {self.rope_type} rotary embedding computes longer rows with other factors, which then "
            "also apply to the short rows of their batch)"
        )


def windows(keys: Mapping[str, object]) -> dict[str, int]:
    """Return the lengths of all attention windows and chunks in a config.json, in tokens, by key."""
    found = {
        name: size for name, value in keys.items() if _WINDOW_KEY.search(str(name)) and (size := _size(value))
    }
    nested = (windows(value) for value in keys.values() if isinstance(value, Mapping))
    return found | {name: size for one in nested for name, size in one.items()}


def _rope_limits(
    value: object, original: int, longest: int, *, in_rope: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (length, rope type) of each rotary embedding whose factors change for rows beyond `length`.

    Searches `value`, the contents of a config.json, recursively. `original` and `longest` are the model's
    original and maximum length, or 0 if unknown. `in_rope` says whether `value` belongs to the settings of a
    rotary embedding.
    """
    if not isinstance(value, Mapping):
        return
    kind = str(value.get("rope_type", value.get("type"))) if in_rope else ""
    if kind in ("longrope", "su"):
        yield original or _size(value.get(_ORIGINAL)) or longest, kind
    elif "dynamic" in kind:
        yield longest, kind
    for name, nested in value.items():
        yield from _rope_limits(nested, original, longest, in_rope=in_rope or "rope" in str(name))


def _size(value: object) -> int:
    """Return the value if it is a positive whole number, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
