"""Units: the requests that are sampled together, whatever else is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.engines.engine import GenerationRequest
from atrium.engines.transformers_engine import cut_units


@pytest.mark.parametrize(
    ("group_sizes", "unit_samples", "units"),
    [
        ([], 4, []),
        ([2, 2, 2, 2, 2], 4, [range(2), range(2, 4), range(4, 5)]),
        ([9, 1, 9], 4, [range(1), range(1, 2), range(2, 3)]),
        ([0, 4, 0, 1], 4, [range(3), range(3, 4)]),
        ([2, 2, 2], None, [range(3)]),
    ],
)
def test_a_unit_is_as_many_whole_requests_as_fit(group_sizes, unit_samples, units):
    requests = [
        GenerationRequest(prompt_token_ids=np.array([1], np.int32), sample_seeds=tuple(range(size)))
        for size in group_sizes
    ]
    assert cut_units(requests, unit_samples) == units
    for unit in units:
        whole = [requests[place] for place in unit]
        assert cut_units(whole, unit_samples) == [range(len(whole))]


def test_requests_of_different_waves_share_no_unit():
    prompt = np.array([1], np.int32)
    requests = [
        GenerationRequest(prompt_token_ids=prompt, sample_seeds=(seed,), wave=wave)
        for seed, wave in enumerate([0, 0, 0, 3, 3, 1])
    ]
    assert cut_units(requests, 2) == [range(2), range(2, 3), range(3, 5), range(5, 6)]
    assert cut_units(requests, None) == [range(3), range(3, 5), range(5, 6)]
