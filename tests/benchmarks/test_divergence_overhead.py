"""The benchmark of divergences runs, reports every arm, and takes its interval by signs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from atrium.method.divergences import Divergence

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("divergence_overhead")
    for name in ("divergence_overhead", "pairs", "record", "updates"):
        sys.modules.pop(name, None)


def test_it_reports_every_arm_against_clipping(benchmark, monkeypatch, capsys):
    sizes = [
        "--repeats",
        "2",
        "--prompts",
        "2",
        "--group",
        "2",
        "--minibatches",
        "1",
        "--max-new-tokens",
        "8",
    ]
    arms = ["binary_kl", "balanced_window", "top_k_kl"]
    monkeypatch.setattr(sys, "argv", ["divergence_overhead.py", *sizes, "--arms", *arms])
    benchmark.main()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["arm"] for record in records] == ["ratio", *arms]
    assert (records[0]["overhead_frac"], records[0]["overhead_interval"]) == (0.0, [0.0, 0.0])
    for record in records[1:]:
        low, high = record["overhead_interval"]
        assert low <= record["overhead_frac"] <= high
        assert (record["repeats"], record["completions"]) == (2, 4)


def test_it_covers_every_window_that_differs_from_token_to_token(benchmark):
    per_token = {part for part in Divergence.values() if part.of_single_tokens is True}
    assert per_token == {type(benchmark.divergence_of(arm)) for arm in benchmark.ARMS} & per_token
    assert len(per_token) == 3


def test_the_interval_of_a_median_by_signs_is_that_of_the_binomial(benchmark):
    # For n = 10 the second smallest and largest cover 97.9 %, the third ones 89.1 %.
    assert benchmark.pairs.median_interval([*range(10, 0, -1)]) == (2, 9)
    # For n = 40: ranks 14 and 27 from below cover 96.2 %, 15 and 26 cover 91.9 %.
    assert benchmark.pairs.median_interval([*range(1, 41)]) == (14, 27)
    assert benchmark.pairs.median_interval([3.0, 1.0]) == (1.0, 3.0)
