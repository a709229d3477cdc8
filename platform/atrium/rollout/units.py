"""Units of work: the requests that are sampled together.

A batch's shape changes the last bits of what is computed in it. Which requests share a batch therefore
follows from the requests alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from atrium.rollout.engine import GenerationRequest


def cut_units(requests: Sequence[GenerationRequest], unit_samples: int | None) -> list[range]:
    """The places of each unit's requests, which follow one another; no requests make no unit.

    A unit is of one wave and has at most `unit_samples` samples, and one request at least; None makes one of
    the whole wave. A unit that is cut again stays whole.
    """
    units: list[range] = []
    first = num_samples = 0
    for place, request in enumerate(requests):
        num_samples += len(request.sample_seeds)
        is_full = unit_samples is not None and num_samples > unit_samples and place > first
        if is_full or request.wave != requests[first].wave:
            units.append(range(first, place))
            first, num_samples = place, len(request.sample_seeds)
    return [*units, range(first, len(requests))] if requests else []
