"""Packed tokens: each computed once, all rows put together as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atrium.train.update.packed_attention import gathered
from atrium.train.update.packing import Gathering, num_packed_tokens, pack


def _rows(seed, num_prompts=4, per_prompt=3, longest=9):
    """Ragged rows, of which those of a prompt share its tokens; some completions have one token or none."""
    rng = np.random.default_rng(seed)
    prompt_B = np.repeat(np.arange(num_prompts), per_prompt)
    num_prompt_B = rng.integers(1, 7, num_prompts)[prompt_B]
    num_tokens_B = num_prompt_B + rng.integers(0, longest, len(prompt_B))
    token_BL = rng.integers(1, 1000, (len(prompt_B), num_tokens_B.max()))
    for row, prompt in enumerate(prompt_B):
        token_BL[row, : num_prompt_B[row]] = token_BL[prompt * per_prompt, : num_prompt_B[row]]
        token_BL[row, num_tokens_B[row] :] = 0
    return torch.from_numpy(token_BL), num_prompt_B, num_tokens_B, prompt_B


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_put_together_as_they_were(seed, padded):
    token_BL, num_prompt_B, num_tokens_B, prompt_B = _rows(seed)
    packing = pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=padded)
    found, start = [], 0
    for num_rows, length in packing.bucket_shapes:
        for place in packing.source.index[start : start + num_rows * length].view(num_rows, length):
            # Padding is token 0, whose position is 0.
            used = max(1, int(packing.position_N[place].count_nonzero()) + 1)
            assert packing.position_N[place[:used]].tolist() == [*range(used)]
            found.append(packing.token_N[place[:used]].tolist())
        start += num_rows * length
    used_B = num_prompt_B + np.maximum(num_tokens_B - num_prompt_B - 1, 0)
    assert sorted(found) == sorted(token_BL[row, :used].tolist() for row, used in enumerate(used_B))
    assert start == len(packing.source.index)


@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_computed_once_and_its_own_query_stands_where_it_is_held(seed):
    token_BL, num_prompt_B, num_tokens_B, prompt_B = _rows(seed)
    packing = pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=True)
    num_tokens = len(packing.token_N)
    assert num_tokens == num_packed_tokens(num_prompt_B, num_tokens_B, prompt_B)
    assert packing.source.index[packing.place_N].tolist() == [*range(num_tokens)]
    held = torch.cat([place for place, _ in packing.source.rounds])
    assert len(held.unique()) == len(held)
    used_B = num_prompt_B + np.maximum(num_tokens_B - num_prompt_B - 1, 0)
    assert len(held) == used_B.sum()


@pytest.mark.parametrize("seed", range(8))
def test_the_predicting_token_is_the_one_before(seed):
    token_BL, num_prompt_B, num_tokens_B, prompt_B = _rows(seed)
    packing = pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=True)
    lengths = (num_tokens_B - num_prompt_B).tolist()
    for row, predicting in enumerate(packing.predicting.index.split(lengths)):
        start, end = num_prompt_B[row] - 1, num_tokens_B[row] - 1
        assert packing.token_N[predicting].tolist() == token_BL[row, start:end].tolist()
        assert packing.position_N[predicting].tolist() == [*range(start, end)]


def test_rows_behind_each_other_say_where_they_end():
    token_BL, num_prompt_B, num_tokens_B, prompt_B = _rows(0)
    packing = pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=False)
    used_B = num_prompt_B + np.maximum(num_tokens_B - num_prompt_B - 1, 0)
    assert packing.row_ends.tolist() == [0, *np.cumsum(used_B)]
    assert len(packing.source.index) == used_B.sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_what_stands_at_several_places_are_added_up_in_float32_whatever_their_dtype(dtype):
    index = np.array([0, 1, 0, 3, 1, 0, 0, 4])
    held = np.array([True] * 7 + [False])
    gathering = Gathering.of(index, torch.device("cpu"), held)
    state = torch.zeros(5, 2, dtype=dtype, requires_grad=True)
    # In bfloat16 256 + 1 is 256: whoever rounds after each term loses what comes behind the first.
    value = torch.tensor([256.0, 2.0, 1.0, 4.0, 8.0, 1.0, 2.0, 64.0], dtype=dtype)
    (gathered(state, gathering) * value[:, None]).sum().backward()
    assert state.grad[:, 1].tolist() == [260.0, 10.0, 0.0, 4.0, 0.0]


@pytest.mark.parametrize("seed", range(8))
def test_nothing_stands_twice_in_a_round_so_that_a_gpu_adds_up_in_one_order(seed):
    packing = pack(*_rows(seed), padded=False)
    for gathering in (packing.source, packing.predicting):
        for place, thing in gathering.rounds:
            assert len(thing.unique()) == len(thing)
            assert gathering.index[place].tolist() == thing.tolist()
