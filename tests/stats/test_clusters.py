"""The variance of a mean over clustered problems, against the general formulas and in null studies."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.stats.clusters import cluster_numbers, degrees_of_freedom, variance_of_mean
from atrium.stats.crossed import crossed_mean

CLUSTERS = np.array([0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 5])


def _general(value_P, cluster_P):
    """CR2 and Bell-McCaffrey for an intercept, by the matrices of the general case."""
    num = len(cluster_P)
    hat = np.full((num, num), 1.0 / num)
    residual = value_P - value_P.mean()
    total, columns = 0.0, []
    for cluster in np.unique(cluster_P):
        own = cluster_P == cluster
        values, vectors = np.linalg.eigh(np.eye(own.sum()) - hat[np.ix_(own, own)])
        adjustment = vectors @ np.diag(values**-0.5) @ vectors.T
        total += (adjustment @ residual[own]).sum() ** 2 / num**2
        columns.append((np.eye(num) - hat)[own].T @ adjustment @ np.ones(own.sum()) / num)
    roots = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    return total, roots.sum() ** 2 / (roots**2).sum()


def test_closed_forms_equal_the_matrices_of_the_general_case():
    value_P = np.random.default_rng(0).normal(size=len(CLUSTERS))
    variance, degrees = _general(value_P, CLUSTERS)
    assert variance_of_mean(value_P, CLUSTERS) == pytest.approx(variance, rel=1e-12)
    assert degrees_of_freedom(len(CLUSTERS), CLUSTERS) == pytest.approx(degrees, rel=1e-12)


def test_one_problem_per_cluster_gives_the_analysis_without_clusters():
    value_SP = np.random.default_rng(1).normal(size=(4, 9)) / 9
    plain, clustered = crossed_mean([value_SP]), crossed_mean([value_SP], clusters=[np.arange(9)])
    assert clustered.new_seeds_and_problems.interval == pytest.approx(
        plain.new_seeds_and_problems.interval, abs=1e-14
    )
    assert degrees_of_freedom(12, np.repeat(range(6), 2)) == pytest.approx(5.0)


def test_clustered_effects_give_false_verdicts_only_where_clusters_are_ignored():
    rng, num = np.random.default_rng(2), 300
    false = {"plain": 0, "clustered": 0}
    for _ in range(num):
        cluster_P = np.repeat(np.arange(10), rng.integers(1, 20, 10))
        num_problems = len(cluster_P)
        value_SP = rng.normal(0, 0.1, 10)[cluster_P] + rng.normal(0, 0.1, num_problems)
        value_SP = np.clip(value_SP + rng.normal(0, 0.2, (5, num_problems)), -1, 1)
        for name, own in (("plain", None), ("clustered", [cluster_P])):
            low, high = crossed_mean([value_SP], clusters=own).new_seeds_and_problems.interval
            false[name] += low > 0 or high < 0
    assert false["plain"] > 0.15 * num
    assert false["clustered"] < 0.08 * num


def test_fewer_than_six_clusters_are_analyzed_problem_by_problem():
    value_SP = np.random.default_rng(3).normal(size=(3, 10)) / 9
    assert crossed_mean([value_SP], clusters=[np.arange(10) % 5]) == crossed_mean([value_SP])


def test_a_problem_without_a_cluster_is_one_by_itself():
    assert cluster_numbers(["a", "b", "a"]).tolist() == [0, 1, 0]
    assert len(set(cluster_numbers(["a", None, "a", None, "1"]).tolist())) == 4
    assert cluster_numbers(["a", None, "b"]) is None
    assert cluster_numbers([None, None]) is None
    assert cluster_numbers([]) is None
