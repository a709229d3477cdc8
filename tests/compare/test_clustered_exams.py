"""Comparisons on problems whose recorded metadata name a cluster."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compare.documents import answer_of
from tests.run_records import sum_problem

from atrium.compare.document_sentences import paper_sentences
from atrium.compare.run_comparison import compare_runs


@pytest.fixture
def make_clustered(make_run, monkeypatch):
    """Runs of two arms on 24 problems of so many contests; an effect varies by contest."""

    def make(num_contests):
        import tests.compare.conftest as builders

        monkeypatch.setattr(
            builders,
            "sum_problem",
            lambda index: sum_problem(index, cluster=f"contest {index % num_contests}"),
        )
        effect_P = np.random.default_rng(0).integers(0, 3, num_contests)[np.arange(24) % num_contests]
        return [
            make_run(
                name, seed, {("exam", 4): np.minimum(4, 1 + seed % 2 + effect_P * (name == "atr")).tolist()}
            )
            for seed in range(3)
            for name in ("grpo", "atr")
        ]

    return make


def test_with_six_clusters_intervals_are_for_new_clusters(make_clustered):
    comparison = compare_runs(make_clustered(6))
    difference = comparison.headline_pairs[0].comparison.difference
    assert difference.new_seeds_and_problems.degrees_of_freedom <= 5
    assert answer_of(comparison)[1].endswith("(paired seeds 0–2; 6 clusters)")
    assert any(
        "24 problems in 6 clusters; intervals are for new clusters" in note for note in comparison.notes
    )


def test_with_fewer_clusters_intervals_are_not_for_new_clusters(make_clustered):
    comparison = compare_runs(make_clustered(3))
    assert comparison.headline_pairs[0].design == "paired seeds 0–2; new problems of these 3 sources"
    assert "new problems of these 3 sources" in paper_sentences(comparison)[0]
    alone = compare_runs(make_clustered(1))
    assert "new problems of this one source" in paper_sentences(alone)[0]
