from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from tests.engines.conftest import reference_distribution

from atrium.engines import sampling as sampling_module
from atrium.engines.engine import SamplingParams
from atrium.engines.sampling import (
    draw,
    log_distribution,
    sample_keys,
    sample_tokens,
    uniforms,
)

NO_STOP = torch.tensor([], dtype=torch.int64)
WORD = 1 << 64


def split_mix_64(word):
    """The output function in Python's integers, as published."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def uniform_of(seed, position):
    state = (split_mix_64(seed % WORD) + (position + 1) * 0x9E3779B97F4A7C15) % WORD
    return (split_mix_64(state) >> 11) / 2**53


def params(**settings):
    return SamplingParams(max_new_tokens=1, **settings)


def test_uniform_numbers_are_those_of_the_published_hash():
    seeds = [0, 1, 2**62 + 12345, 2**63 - 1, 2**64 - 1, -1, 3 * WORD + 5]
    numbers_TN = uniforms(sample_keys(seeds, "cpu"), range(3, 7))
    expected_TN = [[uniform_of(seed, position) for seed in seeds] for position in range(3, 7)]
    assert numbers_TN.tolist() == expected_TN


def test_a_uniform_number_depends_on_its_seed_and_position_only():
    keys = sample_keys(range(100), "cpu")
    numbers_TN = uniforms(keys, range(50))
    assert torch.equal(uniforms(keys[[42, 7]], range(20, 30)), numbers_TN[20:30][:, [42, 7]])
    assert numbers_TN.unique().numel() == 5000


@pytest.mark.parametrize("first", [0, 10**15])
def test_numbers_are_uniform_over_neighbouring_seeds_and_over_positions(first):
    numbers_TN = uniforms(sample_keys(range(first, first + 400), "cpu"), range(400)).numpy()
    assert numbers_TN.min() >= 0
    assert numbers_TN.max() < 1
    for numbers in (numbers_TN.ravel(), numbers_TN[0], numbers_TN[:, 0]):
        assert kstest(numbers, "uniform").pvalue > 1e-3
    counts = np.bincount((numbers_TN.ravel() * 1024).astype(int), minlength=1024)
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, 1), (1, -1)])
def test_numbers_of_neighbouring_seeds_and_positions_are_independent(step):
    numbers_TN = uniforms(sample_keys(range(400), "cpu"), range(400)).numpy()
    cells_TN = (numbers_TN * 16).astype(int)
    shifted_TN = np.roll(cells_TN, step, axis=(0, 1))
    counts = np.bincount((cells_TN * 16 + shifted_TN).ravel(), minlength=256)
    assert chisquare(counts).pvalue > 1e-3
    for distance in (1, 2, 8):
        moved_TN = np.roll(numbers_TN, (step[0] * distance, step[1] * distance), axis=(0, 1))
        assert abs(np.corrcoef(numbers_TN.ravel(), moved_TN.ravel())[0, 1]) < 4 / 400


def test_seeds_that_differ_by_the_increment_are_not_shifted_copies():
    increment = 0x9E3779B97F4A7C15
    numbers_TN = uniforms(sample_keys([11, 11 + increment], "cpu"), range(64))
    assert not set(numbers_TN[:, 0].tolist()) & set(numbers_TN[:, 1].tolist())


def test_drawing_inverts_the_cumulative_distribution():
    rng = np.random.default_rng(0)
    logprob_NV = torch.tensor(rng.normal(0, 3, (500, 40)), dtype=torch.float32).log_softmax(-1)
    uniform_N = torch.tensor(rng.random(500))
    probabilities_NV = logprob_NV.exp().double().numpy()
    for token, probabilities, uniform in zip(
        draw(logprob_NV, uniform_N).tolist(), probabilities_NV, uniform_N.tolist(), strict=True
    ):
        edges = np.concatenate([[0.0], np.cumsum(probabilities)])
        assert edges[token] <= uniform * edges[-1] < edges[token + 1]


def test_a_token_of_probability_zero_is_never_drawn():
    largest = 1 - 2.0**-53
    rng = np.random.default_rng(1)
    logits_NV = torch.tensor(rng.normal(0, 30, (4000, 33)), dtype=torch.float32)
    logits_NV[rng.random((4000, 33)) < 0.5] = -torch.inf
    logits_NV[:, [0, 32]] = -torch.inf
    logits_NV[:, 16] = 0.0
    logprob_NV = logits_NV.log_softmax(-1)
    for uniform in (0.0, 2.0**-53, 0.5, largest):
        uniform_N = torch.full((4000,), uniform, dtype=torch.float64)
        token_N1 = draw(logprob_NV, uniform_N)[:, None]
        assert (logprob_NV.gather(-1, token_N1).exp() > 0).all()


def test_the_largest_number_draws_the_last_possible_token():
    logprob_NV = torch.tensor([[0.25, 0.25, 0.5, 0.0]]).log()
    tokens = [
        draw(logprob_NV, torch.tensor([uniform], dtype=torch.float64)).item()
        for uniform in (0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2.0**-53)
    ]
    assert tokens == [0, 0, 1, 1, 2, 2]


def test_a_token_rarer_than_float32_resolves_is_drawn_when_its_turn_comes():
    logprob_NV = torch.tensor([[1 - 1e-9, 1e-9]], dtype=torch.float64).log().float()
    tokens = [
        draw(logprob_NV, torch.tensor([1 - gap], dtype=torch.float64)).item()
        for gap in (2e-9, 5e-10, 2.0**-53)
    ]
    assert tokens == [0, 1, 1]


def test_a_large_vocabulary_is_drawn_from_evenly():
    logits_NV = torch.zeros(50, 150_000)
    uniform_N = torch.linspace(0, 1, 51, dtype=torch.float64)[:-1]
    token_N, logprob_N = sample_tokens(logits_NV, uniform_N, sampling=params(), stop_S=NO_STOP)
    assert (token_N - (uniform_N * 150_000).long()).abs().max() <= 1
    torch.testing.assert_close(logprob_N, torch.full((50,), -np.log(150_000)).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 4.0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 1000},
        {"top_p": 0.01},
        {"top_p": 0.7},
        {"top_p": 0.999},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8},
        {"temperature": 0.0, "top_k": 3, "top_p": 0.5},
    ],
)
def test_the_distribution_is_the_reference_whatever_the_dtype(settings, dtype):
    torch.manual_seed(0)
    logits_NV = torch.randn(50, 37).mul(3).to(dtype)
    logprob_NV = log_distribution(logits_NV, params(**settings))
    assert logprob_NV.dtype == torch.float32
    for row, logits in zip(logprob_NV, logits_NV, strict=True):
        expected = reference_distribution(logits.float(), params(**settings))
        # A few float32 roundings of the largest number: the division, the exponentials' sum, the difference.
        bound = (
            8 * torch.finfo(torch.float32).eps * max(1.0, float(expected[expected.isfinite()].abs().max()))
        )
        torch.testing.assert_close(row.double(), expected, atol=bound, rtol=0)


def test_min_p_keeps_the_tokens_that_are_likely_enough_beside_the_likeliest():
    probability_NV = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]])
    kept_NV = log_distribution(probability_NV.log(), params(min_p=0.4)).exp()
    torch.testing.assert_close(kept_NV, torch.tensor([[0.625, 0.375, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.5},
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": 0},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.5},
    ],
    ids=str,
)
def test_sampling_parameters_that_describe_no_distribution_cannot_be_made(settings):
    [name] = settings
    with pytest.raises(ValueError, match=name):
        SamplingParams(**({"max_new_tokens": 4} | settings))


def test_ties_with_the_last_of_top_k_stay():
    logprob_NV = log_distribution(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), params(top_k=2))
    assert torch.isfinite(logprob_NV).tolist() == [[True, True, True, False]]


def test_the_nucleus_is_the_smallest_set_that_holds_top_p():
    logits_NV = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    sizes = {
        top_p: int(torch.isfinite(log_distribution(logits_NV, params(top_p=top_p))).sum())
        for top_p in (1e-9, 0.49, 0.51, 0.79, 0.81, 0.96)
    }
    assert sizes == {1e-9: 1, 0.49: 1, 0.51: 2, 0.79: 2, 0.81: 3, 0.96: 4}


def test_a_tiny_temperature_is_greedy_and_does_not_overflow():
    logits_NV = torch.tensor([[300.0, 3e38, -3e37, 2.9e38]])
    logprob_NV = log_distribution(logits_NV, params(temperature=0.01))
    assert logprob_NV.tolist() == [[-torch.inf, 0.0, -torch.inf, -torch.inf]]


def test_stop_tokens_have_probability_zero_when_ignored():
    torch.manual_seed(0)
    logits_NV = torch.randn(300, 6)
    logits_NV[:, [1, 4]] += 5
    sampling = params(ignore_stop=True)
    uniform_N = uniforms(sample_keys(range(300), "cpu"), range(1))[0]
    token_N, logprob_N = sample_tokens(logits_NV, uniform_N, sampling=sampling, stop_S=torch.tensor([1, 4]))
    assert set(token_N.tolist()) == {0, 2, 3, 5}
    rest_NV = logits_NV[:, [0, 2, 3, 5]].log_softmax(-1)
    place_N = torch.tensor([0, -1, 1, 2, -1, 3])[token_N]
    torch.testing.assert_close(logprob_N, rest_NV.gather(-1, place_N[:, None])[:, 0])


def test_splitting_rows_to_bound_memory_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    logits_NV = torch.randn(23, 11)
    uniform_N = torch.rand(23, dtype=torch.float64)
    settings = {"sampling": params(top_p=0.9), "stop_S": NO_STOP}
    whole = sample_tokens(logits_NV, uniform_N, **settings)
    monkeypatch.setattr(sampling_module, "_MAX_ELEMENTS", 44)
    parts = sample_tokens(logits_NV, uniform_N, **settings)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 3}])
def test_logits_that_are_not_finite_give_nan_and_a_valid_token(settings):
    logits_NV = torch.zeros(3, 5)
    logits_NV[0, 2], logits_NV[1, 1] = torch.nan, torch.inf
    uniform_N = torch.full((3,), 0.5, dtype=torch.float64)
    token_N, logprob_N = sample_tokens(logits_NV, uniform_N, sampling=params(**settings), stop_S=NO_STOP)
    assert ((token_N >= 0) & (token_N < 5)).all()
    assert logprob_N.isnan().tolist() == [True, True, False]
