"""Windows against mpmath, closed forms and their own definitions."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import pytest

from atrium.method import windows
from atrium.method.windows import DIVERGENCES, Window, share_after_batch

BUDGETS = [1e-8, 1e-6, 1e-4, 0.005, 0.0231, 0.1, 0.3, 0.6, 1.5, 10.0]
mpmath.mp.dps = 50

EXACT = {
    "ratio": lambda w: abs(w - 1),
    "k1": lambda w: abs(mpmath.log(w)),
    "k1_signed": lambda w: max(-mpmath.log(w), mpmath.mpf(0)),
    "k2": lambda w: mpmath.log(w) ** 2 / 2,
    "kl3": lambda w: w - 1 - mpmath.log(w),
    "kl3_reversed": lambda w: 1 / w - 1 + mpmath.log(w),
    "chi2": lambda w: (w - 1) ** 2 / 2,
    "hellinger": lambda w: (mpmath.sqrt(w) - 1) ** 2,
    "jensen_shannon": lambda w: (w * mpmath.log(w) - (w + 1) * mpmath.log((w + 1) / 2)) / 2,
    "total_variation": lambda w: abs(w - 1) / 2,
}


def exact_alpha(alpha):
    a = mpmath.mpf(alpha)
    if alpha == 1.0:
        return lambda w: w * mpmath.log(w) - w + 1
    return lambda w: (w**a - a * w + a - 1) / (a * (a - 1))


def assert_bound_is_exact(function, bound, delta):
    """One Newton step of the true function from the computed bound moves it by less than 1e-12."""
    w = mpmath.mpf(bound)
    slope = mpmath.diff(function, w, h=w * mpmath.mpf(10) ** -20)
    assert abs((function(w) - mpmath.mpf(delta)) / slope / w) < 1e-12


def assert_window_is_exact(function, limit_at_zero, window, delta):
    if delta >= limit_at_zero:
        assert window.lower == 0.0
    else:
        assert_bound_is_exact(function, window.lower, delta)
    if not math.isinf(window.upper):
        assert_bound_is_exact(function, window.upper, delta)


@pytest.mark.parametrize("kind", sorted(DIVERGENCES))
@pytest.mark.parametrize("delta", BUDGETS)
def test_window_bounds_are_exact_to_1e_12(kind, delta):
    window = windows.window(kind, delta)
    assert_window_is_exact(EXACT[kind], DIVERGENCES[kind].limit_at_zero, window, delta)
    assert math.isinf(window.upper) == (kind == "k1_signed")


@pytest.mark.parametrize("alpha", [-1.5, -0.3, 1e-3, 0.25, 0.5, 0.999, 1.0, 1.0 + 1e-12, 1.7, 2.0, 4.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-3, 0.1, 0.4, 3.0])
def test_alpha_window_bounds_are_exact_to_1e_12(alpha, delta):
    chosen = windows.alpha_divergence(alpha)
    assert_window_is_exact(exact_alpha(alpha), chosen.limit_at_zero, chosen.window(delta), delta)


def test_alpha_interpolates_between_the_named_divergences():
    for ratio in (0.3, 0.9, 1.0, 1.2, 4.0):
        assert windows.alpha_divergence(0.0).value(ratio) == DIVERGENCES["kl3"].value(ratio)
        assert windows.alpha_divergence(2.0).value(ratio) == pytest.approx(
            DIVERGENCES["chi2"].value(ratio), abs=1e-14
        )
        assert windows.alpha_divergence(-1.0).value(ratio) == pytest.approx(
            (1 / ratio - 2 + ratio) / 2, abs=1e-14
        )


@pytest.mark.parametrize("delta", BUDGETS)
def test_kl3_window_is_the_lambert_pair(delta):
    argument = -mpmath.exp(-(1 + mpmath.mpf(delta)))
    window = windows.window("kl3", delta)
    assert window.lower == pytest.approx(float(-mpmath.lambertw(argument, 0).real), rel=1e-12)
    assert window.upper == pytest.approx(float(-mpmath.lambertw(argument, -1).real), rel=1e-12)


@pytest.mark.parametrize(
    ("delta", "lower", "upper"),
    [(0.005, 0.9033, 1.1034), (0.02314, 0.8, 1.2308), (0.03314, 0.7642, 1.28), (0.5, 0.3017, 2.3577)],
)
def test_kl3_windows_have_the_published_values(delta, lower, upper):
    window = windows.window("kl3", delta)
    assert (window.lower, window.upper) == (pytest.approx(lower, abs=6e-5), pytest.approx(upper, abs=6e-5))


@pytest.mark.parametrize("delta", BUDGETS[:-1])
def test_kl3_is_wider_above_on_the_linear_scale_and_below_on_the_log_scale(delta):
    window = windows.window("kl3", delta)
    assert window.upper - 1 > 1 - window.lower
    assert window.lower * window.upper < 1


@pytest.mark.parametrize("kind", sorted(set(DIVERGENCES) - {"k1_signed"}))
def test_budgets_and_bounds_invert_each_other(kind):
    for upper in (1.0001, 1.2, 1.28, 3.0):
        assert windows.window(kind, windows.budget_for_upper(kind, upper)).upper == pytest.approx(
            upper, rel=1e-12
        )
    for lower in (0.2, 0.8, 0.9999):
        assert windows.window(kind, windows.budget_for_lower(kind, lower)).lower == pytest.approx(
            lower, rel=1e-12
        )


def test_matched_budgets_have_the_published_values():
    assert windows.budget_for_lower("kl3", 0.8) == pytest.approx(0.023144, abs=5e-7)
    assert windows.budget_for_upper("kl3", 1.2) == pytest.approx(0.017678, abs=5e-7)
    assert windows.budget_for_upper("kl3", 1.28) == pytest.approx(0.033140, abs=5e-7)


def test_reversed_kl3_window_is_the_reciprocal_of_kl3s():
    plain, reverse = windows.window("kl3", 0.02), windows.window("kl3_reversed", 0.02)
    assert reverse.lower == pytest.approx(1 / plain.upper, rel=1e-13)
    assert reverse.upper == pytest.approx(1 / plain.lower, rel=1e-13)


@pytest.mark.parametrize("kind", sorted(DIVERGENCES))
def test_declared_curvature_is_the_second_derivative_at_one(kind):
    curvature = DIVERGENCES[kind].curvature
    if curvature is not None:
        step = 1e-4
        value = DIVERGENCES[kind].value
        numeric = (value(1 + step) + value(1 - step)) / step**2
        assert numeric == pytest.approx(curvature, rel=1e-3)


@pytest.mark.parametrize("kind", sorted(DIVERGENCES))
def test_a_larger_budget_never_gives_a_smaller_window(kind):
    found = [windows.window(kind, delta) for delta in BUDGETS]
    assert all(a.lower >= b.lower and a.upper <= b.upper for a, b in pairwise(found))


@pytest.mark.parametrize("delta", [-1.0, math.nan, math.inf])
def test_a_budget_that_is_no_budget_is_refused(delta):
    with pytest.raises(ValueError, match="a budget must be at least 0 and finite"):
        windows.window("kl3", delta)


def test_impossible_windows_and_bounds_are_refused():
    with pytest.raises(ValueError, match="window"):
        Window(1.1, 1.2)
    with pytest.raises(ValueError, match="lower must be"):
        windows.budget_for_lower("kl3", 1.5)
    with pytest.raises(ValueError, match="upper must be"):
        windows.budget_for_upper("kl3", 0.5)
    with pytest.raises(ValueError, match=r"upper must be .* got inf"):
        windows.budget_for_upper("kl3", math.inf)
    with pytest.raises(ValueError, match="from above"):
        windows.budget_for_upper("k1_signed", 1.2)
    with pytest.raises(ValueError, match="negative"):
        DIVERGENCES["kl3"].value(-0.1)


def test_zero_budget_allows_only_the_behavior_policy():
    assert windows.window("kl3", 0.0) == Window(1.0, 1.0)
    assert windows.UNBOUNDED.is_unbounded


def test_one_batch_moves_a_share_until_the_looser_bound_stops_it():
    clip = Window(0.8, 1.2)
    assert [share_after_batch(share, clip) for share in (0.0, 0.5, 0.9)] == pytest.approx([0.2, 0.6, 1.0])
    below, above = (share_after_batch(share, Window(0.8, 1.02)) for share in (0.3, 0.98))
    assert (below, above) == pytest.approx((1 - 0.8 * 0.7, 0.98 * 1.02))
    assert share_after_batch(0.1, Window(0.0, math.inf)) == 1.0
