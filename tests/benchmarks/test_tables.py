"""`make bench`: the tables of docs/performance.md are those of the results, and the small setting runs."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
PAGE = REPOSITORY / "docs" / "performance.md"


@pytest.fixture
def programs(monkeypatch):
    """The modules `tables`, `pairs` and `suite` of the benchmarks."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield tuple(importlib.import_module(name) for name in ("tables", "pairs", "suite"))
    for name in ("tables", "result_rows", "pairs", "suite", "record", "gpu_report"):
        sys.modules.pop(name, None)


def test_the_page_holds_the_tables_of_the_kept_results(programs):
    tables, _, _ = programs
    text = PAGE.read_text(encoding="utf-8")
    marked = re.findall(r"<!-- table: (\w+) -->", text)
    assert set(marked) == set(tables.TITLES)
    assert len(marked) == text.count("<!-- end -->")
    assert tables.renewed(text, tables.RESULTS) == text, "make bench-tables"


def test_kept_results_name_machine_versions_and_repeats_but_no_host_and_no_path(programs):
    tables, _, suite = programs
    for path in tables.RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        result = json.loads(text)
        assert result["benchmark"] == path.stem
        assert result["size"] == "full"
        assert set(result["machine"]) <= set(suite.MACHINE_KEYS)
        assert {"processor", "num_cores"} <= set(result["machine"])
        assert tables.rows_of(result)
        assert "/" not in re.sub(r"atrium-rl|W/m|tokens/s", "", "".join(_strings(result["machine"])))
        assert not re.search(r'"(/|[^"]*/(home|work|root|tmp)/)', text)


def _strings(record):
    return [value for value in record.values() if isinstance(value, str)]


def test_every_program_of_the_suite_has_a_title_and_a_table(programs):
    tables, _, suite = programs
    report, result_rows = (importlib.import_module(name) for name in ("gpu_report", "result_rows"))
    assert {*suite.STUDIES, *report.MEASUREMENTS} == set(tables.TITLES) == set(result_rows.ROWS)
    files = [program.file for program in suite.PROGRAMS.values()]
    files += [program[0] for one in report.MEASUREMENTS.values() for program in (*one.programs, *one.small)]
    assert all((BENCHMARKS / file).is_file() for file in files)


def test_ratios_are_paired_and_their_interval_holds_the_median(programs):
    _, pairs, _ = programs
    # A machine that doubles its time halfway changes no paired ratio.
    own, other = [1.0, 1.1, 0.9, 2.0, 2.2, 1.8], [2.0, 2.2, 1.8, 4.0, 4.4, 3.6]
    assert pairs.ratio_of(other, own) == {"ratio": 2.0, "interval": [2.0, 2.0]}


def test_arms_run_in_turned_order_and_the_first_round_is_left_out(programs):
    _, pairs, _ = programs
    order = []

    def arm(name):
        return lambda: order.append(name) or float(len(order))

    found = pairs.in_turns({"a": arm("a"), "b": arm("b")}, 2)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_peak_memory_is_that_of_the_work_alone():
    # In a process of its own: this one may hold memory that other tests freed.
    measure = "import pairs, numpy; print(pairs.peak_mb(lambda: numpy.ones(60 << 17)))"  # 60 MB
    process = subprocess.run(
        [sys.executable, "-c", measure], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    if process.stdout.strip() == "None":
        pytest.skip("this system does not let a process set its high-water mark back")
    assert 50 < float(process.stdout) < 90


def test_a_step_without_its_peer_has_no_ratio_and_with_it_one_per_pair(programs):
    tables, _, _ = programs
    ours = {
        "arm": "atrium",
        "model": "3m",
        "params": 2_970_000,
        "free_length": False,
        "max_new_tokens": 32,
        "prompts": 16,
        "group": 8,
        "threads": 1,
        "micro": 128,
        "dtype": "fp32",
        "cpu_step_med": 2.0,
        "peak_rss_mb": 900,
        "t_first_step_done": 5.0,
    }
    theirs = {**ours, "arm": "trl", "cpu_step_med": 3.0, "peak_rss_mb": 1350, "t_first_step_done": 10.0}
    alone = tables.rows_of({"benchmark": "step", "records": [ours]})
    assert [row.ratio for row in alone] == ["", "", ""]
    paired = tables.rows_of({"benchmark": "step", "records": [ours, theirs]})
    assert [row.ratio for row in paired] == ["1.50", "1.50", "2.00"]


@pytest.mark.full
@pytest.mark.release
def test_the_small_setting_runs_everything_and_prints_one_table(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / "suite.py",
            *(
                "--size",
                "small",
                "--peer",
                "none",
                "--vllm",
                "none",
                "--results",
                tmp_path / "results",
                "--work",
                tmp_path,
            ),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = {path.stem for path in (tmp_path / "results").glob("*.json")}
    expected = {
        "step",
        "pretrained",
        "loss_stage",
        "divergences",
        "packing",
        "update_cost",
        "grading",
        "start_up",
    }
    assert expected <= found
    for title in ("a training step against TRL", "packed against padded", "start-up"):
        assert title in done.stdout
    assert "skipped: step against TRL: none is not there" in done.stdout
    assert "skipped: sampling by a server during the update: none does not exist" in done.stdout
    assert "[1/9]" in done.stderr
