"""Trust regions: constant windows run one code path, others against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from atrium import load_method
from atrium.method import windows
from atrium.method.divergences import BudgetDivergence, Divergence, SequenceMean
from atrium.method.minibatch_windows import BalancedWindow
from atrium.method.objective import Objective
from atrium.method.regions import RegionInputs
from atrium.method.state_divergences import (
    STATE_DIVERGENCES,
    divergence_by_chunks,
    kl_divergence,
    top_tokens,
    total_variation,
    with_rest,
)
from atrium.method.token_windows import BinaryKL


def region_of(divergence, ratio_BT, *, anchor_BT=None, mask_BT=None, bounds=None):
    ratio_BT = torch.as_tensor(ratio_BT, dtype=torch.float64)
    anchor_BT = torch.full_like(ratio_BT, 0.1) if anchor_BT is None else anchor_BT
    inputs = RegionInputs(
        ratio_BT=ratio_BT,
        token_log_ratio_BT=ratio_BT.log(),
        anchor_logprob_BT=anchor_BT.log(),
        mask_BT=torch.ones_like(ratio_BT, dtype=torch.bool) if mask_BT is None else mask_BT,
        bounds=bounds,
    )
    return divergence.region(inputs)


@pytest.mark.parametrize("kind", sorted(windows.DIVERGENCES))
def test_divergences_of_the_ratio_alone_become_one_class_with_bounds(kind):
    built = Divergence.build(kind, delta=0.03)
    assert type(built) is BudgetDivergence
    assert built.window() == windows.window(kind, 0.03)
    value = windows.DIVERGENCES[kind].value
    ratios = torch.linspace(0.3, 3.0, 500, dtype=torch.float64)[None]
    feasible = [value(ratio) <= 0.03 for ratio in ratios[0].tolist()]
    assert region_of(built, ratios).feasible_BT[0].tolist() == feasible


def test_everything_is_feasible_without_a_divergence():
    assert region_of(Divergence.build("none"), [[1e-30, 1.0, 1e30]]).feasible_BT.all()


def random_tokens(seed=0, shape=(60, 50)):
    """Anchor and policy probabilities from 1e-7 to nearly 1."""
    generator = torch.Generator().manual_seed(seed)
    anchor_BT, policy_BT = (
        torch.sigmoid(4 * torch.randn(shape, generator=generator, dtype=torch.float64)) for _ in range(2)
    )
    near_BT = anchor_BT * (1 + 0.6 * (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5))
    return anchor_BT, torch.where(
        torch.rand(shape, generator=generator) < 0.5, policy_BT, near_BT.clamp(max=1 - 1e-9)
    )


def test_binary_total_variation_bounds_the_change_of_probability():
    anchor_BT, policy_BT = random_tokens()
    region = region_of(
        Divergence.build("binary_total_variation", delta_low=0.1, delta_high=0.2),
        policy_BT / anchor_BT,
        anchor_BT=anchor_BT,
    )
    change_BT = policy_BT - anchor_BT
    clear_BT = ((change_BT - 0.2).abs() > 1e-9) & ((change_BT + 0.1).abs() > 1e-9)
    assert torch.equal(region.feasible_BT[clear_BT], ((change_BT <= 0.2) & (change_BT >= -0.1))[clear_BT])
    torch.testing.assert_close(region.lower * anchor_BT, (anchor_BT - 0.1).clamp(min=0))
    torch.testing.assert_close(region.upper * anchor_BT, (anchor_BT + 0.2).clamp(max=1))


@pytest.mark.parametrize("kind", ["binary_total_variation", "binary_kl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_divergences_judge_probabilities_and_no_bounded_ratio(kind, dtype):
    """q = e^-30 and p = 0.61 differ by 0.61, though q e^20 is nearly 0."""
    anchor_BT = torch.full((1, 2), -30.0, dtype=dtype)
    policy_BT = torch.tensor([[math.log(0.61), -29.0]], dtype=dtype)
    log_ratio_BT = policy_BT - anchor_BT
    budgets = {"delta_low": 0.15, "delta_high": 0.15} if "total" in kind else {"delta": 0.05}
    inputs = RegionInputs(
        ratio_BT=log_ratio_BT.clamp(max=20.0).exp(),
        token_log_ratio_BT=log_ratio_BT,
        anchor_logprob_BT=anchor_BT,
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
    )
    region = Divergence.build(kind, **budgets).region(inputs)
    assert region.feasible_BT.tolist() == [[False, True]]


@pytest.mark.parametrize("delta", [1e-6, 0.05, 2.0])
def test_binary_kl_bounds_solve_their_equation(delta):
    anchor_BT, policy_BT = random_tokens(1)
    region = region_of(Divergence.build("binary_kl", delta=delta), policy_BT / anchor_BT, anchor_BT=anchor_BT)

    def value(p):
        rest = (1 - anchor_BT) * (torch.log1p(-anchor_BT) - torch.log1p(-p))
        return anchor_BT * (anchor_BT.log() - p.log()) + rest

    found_BT = value(policy_BT)
    clear_BT = (found_BT - delta).abs() > 1e-9 * (1 + delta)
    assert torch.equal(region.feasible_BT[clear_BT], (found_BT <= delta)[clear_BT])
    for bound_BT in (region.lower, region.upper):
        p = bound_BT * anchor_BT
        solvable_BT = (p > 1e-200) & (p < 1 - 1e-6)
        torch.testing.assert_close(
            value(p)[solvable_BT], torch.full_like(p, delta)[solvable_BT], rtol=1e-6, atol=1e-12
        )
    assert (region.lower <= 1).all()
    assert (region.upper >= 1).all()


@pytest.mark.parametrize("kind", ["binary_kl", "binary_total_variation", "dynamic_clip"])
def test_token_windows_are_finite_in_float32_at_the_edges(kind):
    settings = {"binary_kl": {"delta": 0.05}, "binary_total_variation": {"delta_low": 0.1, "delta_high": 0.1}}
    chosen = Divergence.build(
        kind, **settings.get(kind, {"epsilon_low": 0.16, "epsilon_high": 0.2, "cap": 10.0})
    )
    logprob_BT = torch.tensor([[0.0, -1e-8, -1e-3, -20.0, -80.0, -120.0]])
    for log_ratio in (-20.0, 0.0, 20.0):
        ratio_BT = torch.full_like(logprob_BT, log_ratio).exp()
        inputs = RegionInputs(
            ratio_BT=ratio_BT,
            token_log_ratio_BT=ratio_BT.log(),
            anchor_logprob_BT=logprob_BT,
            mask_BT=torch.ones_like(logprob_BT, dtype=torch.bool),
        )
        region = chosen.region(inputs)
        for bound in (region.lower, region.upper):
            assert not bound.isnan().any()
        if log_ratio == 0.0:
            assert region.feasible_BT.all()


def test_dcpo_widens_for_unlikely_tokens():
    anchor_BT = torch.tensor([[0.9, 0.5, 0.01]], dtype=torch.float64)
    region = region_of(
        Divergence.build("dynamic_clip", epsilon_low=0.16, epsilon_high=0.2, cap=3.0),
        [[1.0, 1.0, 1.0]],
        anchor_BT=anchor_BT,
    )
    lowers = [0.5 + 0.5 * math.sqrt(max(1 - 0.64 / q, 0)) for q in (0.9, 0.5, 0.01)]
    uppers = [min(3.0, 0.5 + 0.5 * math.sqrt(1 + 0.8 / q)) for q in (0.9, 0.5, 0.01)]
    assert region.lower[0].tolist() == pytest.approx(lowers)
    assert region.upper[0].tolist() == pytest.approx(uppers)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_sequence_mean_judges_whole_rows_by_unmasked_tokens(estimator):
    ratio_BT = torch.tensor([[0.5, 1.2, 9.0], [0.9, 1.1, 1.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False], [True, True, True]])
    estimates = {
        "k1": lambda w: -math.log(w),
        "k2": lambda w: 0.5 * math.log(w) ** 2,
        "k3": lambda w: w - 1 - math.log(w),
    }
    first = sum(estimates[estimator](w) for w in (0.5, 1.2)) / 2
    for delta, kept in ((first * 1.01, True), (first * 0.99, False)):
        region = region_of(SequenceMean(estimator=estimator, delta=delta), ratio_BT, mask_BT=mask_BT)
        assert region.feasible_BT[0].tolist() == [kept] * 3
        assert region.feasible_BT[1].all()


@pytest.mark.parametrize("over", ["mean", "sum", "maximum"])
def test_a_sequence_is_judged_by_a_statistic_of_its_total_variation(over):
    ratio_BT = torch.tensor([[0.5, 1.2, 9.0], [0.9, 1.1, 1.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False], [True, True, True]])
    first = {"mean": 0.35, "sum": 0.7, "maximum": 0.5}[over]
    for delta, kept in ((first * 1.01, True), (first * 0.99, False)):
        chosen = SequenceMean(estimator="total_variation", over=over, delta=delta)
        region = region_of(chosen, ratio_BT, mask_BT=mask_BT)
        assert region.feasible_BT[0].tolist() == [kept] * 3
        assert region.feasible_BT[1].all()


@pytest.mark.parametrize("over", ["mean", "sum", "maximum"])
def test_clip_by_the_total_variation_of_completions_of_one_token_is_that_of_tokens(over, make_case, step):
    settings = ("kind=sequence_mean", "estimator=total_variation", f"over={over}", "delta=0.2")
    gate = load_method("grpo", *(f"divergence.{setting}" for setting in settings)).method
    case = make_case(0, num_tokens=1)
    results = [step(Objective(method), case) for method in (gate, load_method("grpo").method)]
    assert torch.equal(results[0].gradient_BT, results[1].gradient_BT)
    assert (results[0].gradient_BT == 0.0).any()


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_binary_kl_has_a_budget_for_each_side(direction):
    log_ratio_BT = torch.linspace(-0.9, 0.9, 41, dtype=torch.float64)[None]
    anchor_BT = torch.full_like(log_ratio_BT, 0.4)
    found = {}
    for low, high in ((None, 0.05), (0.05, 0.05), (0.02, 0.05), (None, 0.02)):
        chosen = BinaryKL(delta=high, delta_low=low, direction=direction)
        found[low, high] = region_of(chosen, log_ratio_BT.exp(), anchor_BT=anchor_BT).feasible_BT[0]
    assert torch.equal(found[None, 0.05], found[0.05, 0.05])
    assert torch.equal(found[0.02, 0.05][:20], found[None, 0.02][:20])
    assert torch.equal(found[0.02, 0.05][20:], found[None, 0.05][20:])
    assert found[None, 0.02].sum() < found[0.02, 0.05].sum() < found[None, 0.05].sum()


def test_window_of_binary_kl_by_probability_has_both_budgets():
    two, small, large = (
        BinaryKL(delta=high, delta_low=low).window_at(0.3)
        for low, high in ((0.01, 0.1), (None, 0.01), (None, 0.1))
    )
    assert (two.lower, two.upper) == pytest.approx((small.lower, large.upper), rel=1e-12)


# BAPO: a search over windows, against the loop of the recipe for verl.

BAPO = BalancedWindow(lower=0.6, upper=1.2, lower_max=0.9, upper_max=3.0, step=0.05, positive_frac=0.5)


def searched(ratio_BT, advantage_BT, chosen):
    def enough(lower, upper):
        effective_BT = torch.where(advantage_BT >= 0, ratio_BT.clamp(max=upper), ratio_BT.clamp(min=lower))
        signal_BT = effective_BT * advantage_BT
        positive, negative = signal_BT.clamp(min=0).sum(), -signal_BT.clamp(max=0).sum()
        return positive >= chosen.positive_frac * (positive + negative)

    lower, upper = chosen.lower, chosen.upper
    while not enough(lower, upper) and lower < chosen.lower_max - 1e-9:
        lower = min(lower + chosen.step, chosen.lower_max)
    while not enough(lower, upper) and upper < chosen.upper_max - 1e-9:
        upper = min(upper + chosen.step, chosen.upper_max)
    return lower, upper


@pytest.mark.parametrize("shift", [0.5, 0.12, 0.05, -0.05, -1.0])
def test_bapo_finds_the_first_window_with_enough_positive_signal(shift):
    generator = torch.Generator().manual_seed(5)
    ratio_BT = torch.exp(0.6 * torch.randn(30, 20, generator=generator, dtype=torch.float64))
    advantage_BT = torch.randn(30, 20, generator=generator, dtype=torch.float64) + shift
    mask_BT = torch.rand(30, 20, generator=generator) < 0.8
    inputs = RegionInputs(
        ratio_BT=ratio_BT,
        token_log_ratio_BT=ratio_BT.log(),
        anchor_logprob_BT=torch.zeros_like(ratio_BT),
        mask_BT=mask_BT,
    )
    found = BAPO.prepare_bounds(inputs, torch.where(mask_BT, advantage_BT, torch.nan), lambda value: value)
    expected = searched(ratio_BT, advantage_BT * mask_BT, BAPO)
    assert found.tolist() == pytest.approx(expected)
    halves = region_of(BAPO, ratio_BT, bounds=found)
    assert torch.equal(halves.feasible_BT, (ratio_BT >= found[0]) & (ratio_BT <= found[1]))


# Budgets along a completion, and over a minibatch.


def invert(order):
    """The rank of each index in an order."""
    return [order.index(index) for index in range(len(order))]


def walked(anchor_BT, policy_BT, mask_BT, divergence):
    """Which tokens meet both budgets of CPPO, token by token."""
    delta, least, w_min = divergence.of.delta_high, divergence.prefix_delta, divergence.w_min
    feasible_BT = torch.ones_like(mask_BT)
    for row, mask_T in enumerate(mask_BT):
        places = mask_T.nonzero()[:, 0].tolist()
        change = (policy_BT[row] - anchor_BT[row]).abs()[places]
        budget = least
        if divergence.quantile is not None and places:
            wanted = divergence.scale * change.quantile(divergence.quantile).item()
            budget = min(max(wanted, least), divergence.ceiling * least)
        by_key = sorted(range(len(places)), key=lambda index: index * (math.sqrt(5) - 1) / 2 % 1)
        ranks = list(range(len(places))) if divergence.order == "forward" else invert(by_key)
        spent = earned = 0.0
        for index, place in enumerate(places):
            weight = 1.0 - (1.0 - w_min) * ranks[index] / max(len(places) - 1, 1)
            own = weight * change[index].item()
            feasible_BT[row, place] = own <= min(delta, delta + budget * earned - spent)
            spent, earned = spent + own, earned + weight
    return feasible_BT


@pytest.mark.parametrize("quantile", [None, 0.9])
@pytest.mark.parametrize(
    ("w_min", "order"), [(0.0, "forward"), (0.8, "forward"), (1.0, "forward"), (0.2, "shuffled")]
)
def test_prefix_budget_is_the_definition_walked_token_by_token(w_min, order, quantile):
    anchor_BT, policy_BT = random_tokens(3, (40, 12))
    mask_BT = torch.rand(40, 12, generator=torch.Generator().manual_seed(0)) < 0.7
    mask_BT[7] = False
    of = Divergence.build("binary_total_variation", delta_low=0.15, delta_high=0.15)
    settings = {"w_min": w_min, "order": order, "prefix_delta": 0.02, "quantile": quantile}
    divergence = Divergence.build("prefix_budget", of=of, **settings)
    region = region_of(divergence, policy_BT / anchor_BT, anchor_BT=anchor_BT, mask_BT=mask_BT)
    expected_BT = walked(anchor_BT, policy_BT, mask_BT, divergence)
    assert torch.equal(region.feasible_BT[mask_BT], expected_BT[mask_BT])
    assert 0 < expected_BT[mask_BT].sum() < mask_BT.sum()


def test_prefix_budget_without_bound_is_the_inner_divergence_and_a_larger_one_keeps_more():
    anchor_BT, policy_BT = random_tokens(4, (30, 20))
    of = Divergence.build("binary_total_variation", delta_low=0.1, delta_high=0.2)
    settings = {"of": of, "w_min": 1.0, "quantile": None}
    kept = [
        region_of(
            Divergence.build("prefix_budget", prefix_delta=budget, **settings),
            policy_BT / anchor_BT,
            anchor_BT=anchor_BT,
        ).feasible_BT
        for budget in (0.01, 0.05, 1e6)
    ]
    assert torch.equal(kept[2], region_of(of, policy_BT / anchor_BT, anchor_BT=anchor_BT).feasible_BT)
    assert (kept[0] <= kept[1]).all()
    assert (kept[1] <= kept[2]).all()
    assert kept[0].sum() < kept[1].sum() < kept[2].sum()


def test_prefix_budget_needs_a_divergence_of_tokens():
    with pytest.raises(ValueError, match="binary_total_variation"):
        Divergence.build("prefix_budget", of=Divergence.build("none"), w_min=1.0, prefix_delta=0.1)


def test_both_directions_of_the_binary_kl_are_within_the_budget():
    anchor_BT, policy_BT = random_tokens(5)

    def kl(a, b):
        return a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()

    anchor_BT, policy_BT = anchor_BT.clamp(1e-5, 1 - 1e-5), policy_BT.clamp(1e-5, 1 - 1e-5)
    region = region_of(
        Divergence.build("binary_kl", delta=0.1, direction="both"), policy_BT / anchor_BT, anchor_BT=anchor_BT
    )
    expected_BT = kl(anchor_BT, policy_BT).maximum(kl(policy_BT, anchor_BT)) <= 0.1
    assert torch.equal(region.feasible_BT, expected_BT)


def second_moment_inputs(ratio_BT, mask_BT):
    return RegionInputs(
        ratio_BT=ratio_BT,
        token_log_ratio_BT=ratio_BT.log(),
        anchor_logprob_BT=torch.full_like(ratio_BT, -1.0),
        mask_BT=mask_BT,
    )


@pytest.mark.parametrize("spread", [0.05, 0.5, 5.0])
def test_second_moment_finds_the_window_at_which_the_mean_of_squares_is_the_budget(over_ranks, spread):
    generator = torch.Generator().manual_seed(1)
    log_BT = spread * torch.randn(12, 9, generator=generator, dtype=torch.float64)
    advantage_BT = torch.randn(12, 9, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(12, 9, generator=generator) < 0.8
    chosen = Divergence.build("second_moment", delta=0.04)
    inputs = second_moment_inputs(log_BT.exp(), mask_BT)
    lower, upper = chosen.prepare_bounds(inputs, advantage_BT, lambda value: value).tolist()
    square_N = log_BT[mask_BT & (advantage_BT * log_BT > 0)].square()
    if square_N.mean() <= 0.04:
        assert spread == 0.05
        assert (lower, upper) == (0.0, math.inf)
        return
    assert lower * upper == pytest.approx(1.0)
    assert square_N.clamp(max=math.log(upper) ** 2).mean().item() == pytest.approx(0.04, rel=1e-12)
    parts = over_ranks(
        [
            lambda sum_over_ranks, rows=rows: chosen.prepare_bounds(
                second_moment_inputs(log_BT.exp()[rows], mask_BT[rows]), advantage_BT[rows], sum_over_ranks
            )
            for rows in (slice(0, 5), slice(5, 12))
        ]
    )
    for part in parts:
        assert part.tolist() == pytest.approx([lower, upper], rel=1e-12)


# Widths, which the quadratic surrogate divides by.


@pytest.mark.parametrize(
    ("kind", "settings", "widths"),
    [
        ("ratio", {"delta": 12.5}, (12.5, 12.5)),
        ("total_variation", {"delta": 2.0}, (4.0, 4.0)),
        ("asymmetric_ratio", {"epsilon_low": 3.0, "epsilon_high": 0.2}, (3.0, 0.2)),
        ("ratio", {"delta": 0.2}, (0.2, 0.2)),
    ],
)
def test_widths_go_beyond_ratio_0(kind, settings, widths):
    region = region_of(Divergence.build(kind, **settings), [[0.5, 1.0, 2.0]])
    found = [width.item() for width in region.widths_like(torch.ones(1, dtype=torch.float64))]
    assert found == pytest.approx(list(widths))


def test_widths_of_total_variation_are_the_budgets_over_the_probability():
    anchor_BT = torch.tensor([[0.9, 0.5, 0.01]], dtype=torch.float64)
    chosen = Divergence.build("binary_total_variation", delta_low=0.3, delta_high=12.5)
    low, high = region_of(chosen, [[1.0, 1.0, 1.0]], anchor_BT=anchor_BT).widths_like(anchor_BT)
    torch.testing.assert_close(low, 0.3 / anchor_BT)
    torch.testing.assert_close(high, 12.5 / anchor_BT)


# Divergences of whole distributions.


TOKENS_N = torch.arange(37) % 11


def logits(seed, num=37, vocabulary=11):
    return 2 * torch.randn(
        num, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_state_divergences_are_torchs_own():
    anchor, policy = logits(0).log_softmax(-1), logits(1).log_softmax(-1)
    kl = torch.nn.functional.kl_div(policy, anchor, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(kl_divergence(anchor, policy), kl)
    torch.testing.assert_close(
        total_variation(anchor, policy), 0.5 * (anchor.exp() - policy.exp()).abs().sum(-1)
    )
    assert kl_divergence(anchor, anchor).abs().max() == 0
    impossible = torch.tensor([[-math.inf, 0.0]]), torch.tensor([[-1.0, math.log1p(-math.exp(-1.0))]])
    assert kl_divergence(*impossible).item() == pytest.approx(-math.log1p(-math.exp(-1.0)))


@pytest.mark.parametrize("measure", sorted(STATE_DIVERGENCES))
@pytest.mark.parametrize("top_k", [None, 1, 4, 11, 50])
def test_chunks_do_not_matter_and_a_rest_bucket_only_loses(measure, top_k):
    anchor, policy = logits(2).float(), logits(3).float()
    divergence = STATE_DIVERGENCES[measure]

    def run(chunk_size, k):
        return divergence_by_chunks(
            anchor.__getitem__,
            policy.__getitem__,
            TOKENS_N,
            divergence=divergence,
            top_k=k,
            chunk_size=chunk_size,
        )

    torch.testing.assert_close(run(5, top_k), run(1000, top_k), rtol=1e-6, atol=1e-7)
    whole = run(1000, None)
    assert (run(8, top_k) <= whole + 1e-6).all()
    if top_k in (11, 50):
        torch.testing.assert_close(run(8, top_k), whole, rtol=1e-5, atol=1e-6)
    assert run(4, top_k).shape == (37,)
    none_N = TOKENS_N[:0]
    empty = divergence_by_chunks(anchor.__getitem__, policy.__getitem__, none_N, divergence=divergence)
    assert empty.shape == (0,)


def test_a_rest_bucket_holds_what_is_left():
    anchor = logits(4).log_softmax(-1)
    token_NK = top_tokens(anchor, 3, anchor.argmax(-1))
    buckets = with_rest(anchor, token_NK)
    torch.testing.assert_close(buckets.exp().sum(-1), torch.ones(37, dtype=torch.float64))
    assert (buckets[:, :3].min(dim=-1).values >= anchor.sort(descending=True).values[:, 3]).all()
    all_tokens = top_tokens(anchor, 11, TOKENS_N)
    assert with_rest(anchor, all_tokens)[:, -1].isneginf().all()


def test_the_sampled_token_takes_the_place_of_the_last_of_the_top_tokens():
    anchor = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(4, 4)
    chosen = top_tokens(anchor, 2, torch.arange(4))
    assert chosen.tolist() == [[1, 0], [1, 3], [1, 2], [1, 3]]


def test_state_divergences_say_what_they_need():
    full, top = Divergence.build("state_kl", delta=0.1), Divergence.build("top_k_kl", delta=0.1, top_k=7)
    assert (full.needs.distribution, full.needs.anchor_pass) == ("full", True)
    assert (top.needs.distribution, top.needs.top_k) == ("top_k", 7)
    assert (full.needs | top.needs).distribution == "full"
