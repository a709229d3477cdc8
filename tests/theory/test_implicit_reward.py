"""GVPO's Theorems 1 to 3 on whole sequences, and an optimum that moves with the sampler beside it."""

from __future__ import annotations

import pytest

from atrium.theory.implicit_reward import regression_findings, rewards, samplers
from atrium.theory.testbed import Tabular


@pytest.fixture(scope="module")
def findings():
    return regression_findings(num_starts=1, num_steps=2)


def test_the_minimiser_is_unique(findings):
    assert max(findings.start_errors) < 1e-5


def test_the_optimum_is_that_of_the_tilted_policy_under_every_sampler(findings):
    ours = [optimum for optimum in findings.optima if optimum.objective == "GVPO"]
    assert len(ours) == 4
    assert max(optimum.max_difference for optimum in ours) < 1e-5
    assert sum(findings.optimum_B) == pytest.approx(1.0)


def test_the_weighted_objective_moves_with_the_sampler(findings):
    theirs = {optimum.sampler: optimum for optimum in findings.optima if optimum.objective != "GVPO"}
    assert theirs.pop("own samples").max_difference < 1e-5
    assert all(optimum.max_difference > 3e-3 for optimum in theirs.values())


def test_n_steps_end_at_the_optimum_of_a_nth_of_beta_on_the_frontier(findings):
    steps = findings.steps
    assert max(steps.max_difference) < 1e-5
    assert steps.kl[1] > steps.kl[0]
    assert steps.reward[1] > steps.reward[0]
    best = [
        reward
        for kl, reward in zip(steps.frontier_kl, steps.frontier_reward, strict=True)
        if kl <= steps.kl[0]
    ]
    assert max(best) <= steps.reward[0] + 1e-9


def test_samplers_are_distributions_that_cover_everything():
    anchor = Tabular.random(15, 2)
    for sampler_B in samplers(anchor, rewards(9)).values():
        assert sampler_B.sum().item() == pytest.approx(1.0)
        assert (sampler_B > 0.0).all()
