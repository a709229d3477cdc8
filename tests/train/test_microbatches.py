"""Cutting rows into micro-batches: every row once, within the budget, at the least cost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atrium.train.update.micro_batches import LAUNCH_COST_TOKENS, split_by_length, split_by_tokens


def _lengths(seed, num_rows, longest=900):
    return np.random.default_rng(seed).integers(1, longest, num_rows)


def _cost(lengths, parts):
    return sum(len(part) * int(lengths[part].max()) + LAUNCH_COST_TOKENS for part in parts)


def _cheapest(lengths):
    """The least cost over all ways to cut the rows, sorted by length, into consecutive parts."""
    lengths = np.sort(lengths)
    places = range(1, len(lengths))
    cuts = itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(len(lengths)))
    return min(_cost(lengths, np.split(np.arange(len(lengths)), chosen)) for chosen in cuts)


@pytest.mark.parametrize("seed", range(30))
def test_without_a_budget_the_cuts_cost_as_little_as_any(seed):
    num_rows = 1 + seed % 9
    lengths = _lengths(seed, num_rows, longest=[3, 200, 900][seed % 3])
    parts = split_by_length(lengths, max_tokens=10**9)
    assert _cost(lengths, parts) == _cheapest(lengths)


@pytest.mark.parametrize("max_tokens", [1, 50, 333, 1024, 4096, 10**9])
@pytest.mark.parametrize("num_rows", [1, 2, 17, 300])
def test_every_row_is_in_one_part_and_no_part_exceeds_the_budget(max_tokens, num_rows):
    lengths = _lengths(num_rows, num_rows)
    parts = split_by_length(lengths, max_tokens=max_tokens)
    assert sorted(np.concatenate(parts).tolist()) == [*range(num_rows)]
    for part in parts:
        assert len(part) >= 1
        assert len(part) * lengths[part].max() <= max_tokens or len(part) == 1
    ends = [lengths[part] for part in parts]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(ends))


def test_rows_of_one_length_share_a_part_and_keep_their_order():
    (part,) = split_by_length(np.full(40, 7), max_tokens=280)
    assert part.tolist() == [*range(40)]


def test_a_budget_splits_evenly():
    parts = split_by_length(np.full(10, 10), max_tokens=40)
    assert [len(part) for part in parts] == [4, 3, 3]


def test_a_row_longer_than_the_budget_stands_alone():
    parts = split_by_length(np.array([5, 5000, 6]), max_tokens=100)
    assert [part.tolist() for part in parts] == [[0, 2], [1]]


def test_no_rows_give_no_parts():
    assert split_by_length(np.array([], dtype=np.int64), max_tokens=10) == []


@pytest.mark.parametrize("max_tokens", [1, 50, 333, 1024, 10**9])
@pytest.mark.parametrize("num_rows", [1, 2, 17, 300])
def test_packed_parts_keep_the_order_of_rows_and_the_budget(max_tokens, num_rows):
    num_tokens = _lengths(num_rows, num_rows)
    parts = split_by_tokens(num_tokens, max_tokens=max_tokens)
    assert np.concatenate(parts).tolist() == [*range(num_rows)]
    for part in parts:
        assert num_tokens[part].sum() <= max_tokens or len(part) == 1


def test_packed_parts_have_about_equal_tokens():
    num_tokens = _lengths(0, 400, longest=30)
    parts = split_by_tokens(num_tokens, max_tokens=int(num_tokens.sum()) // 3)
    totals = [int(num_tokens[part].sum()) for part in parts]
    assert len(parts) == 4
    assert max(totals) - min(totals) < 60


def test_no_rows_give_no_packed_parts():
    assert split_by_tokens(np.array([], dtype=np.int64), max_tokens=10) == []
