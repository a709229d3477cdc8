"""`atrium sweep` on the command line, up to where training begins; real sweeps run in `tests/faults`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from atrium.assemble.sweep_display import Lines, Progress, live_view
from atrium.assemble.sweep_workers import sweep_definition
from atrium.base.errors import ConfigError
from atrium.cli import main
from atrium.sweep.document import trial_values

MINE = """
question: Which delta is best?
base: [experiment=stress, num_steps=4]
space:
  divergence.delta:
    choices: [0.02, 0.1]
seeds: [0]
trials: 2
sampler: {kind: grid}
"""


def test_help_says_what_can_be_swept(capsys):
    assert main(["sweep", "--help"]) == 0
    said = capsys.readouterr().out
    assert "delta, delta_qwen3_1_7b, divergence, " in " ".join(said.split())
    assert "budget=tiny" in said


def test_a_sweep_of_a_language_model_says_what_it_would_take_on_gpus_that_are_not_here(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "delta_qwen3_1_7b", "plan=H100", "workers=8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("34 runs (12 search + 12 baseline + 10 final), before anything is pruned")
    assert re.search(
        r"a run: predicted, not measured: 1\d:\d\d per step \(sampling 1\d:\d\d, .*update \d:\d\d\)", said
    )
    hours, all_hours = (float(re.search(rf"{of} ([\d.]+) ", said)[1]) for of in ("predicted:", "the sweep:"))
    assert abs(34 * hours - all_hours) < 2
    assert "memory: it fits in 80.0 GB" in said
    assert not list(tmp_path.iterdir())
    assert main(["sweep", "delta_qwen3_1_7b", "plan=RTX 4090"]) == 0
    assert "memory: it does not fit in 24.0 GB of GPU memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["detla"], "did you mean delta?\n"),
        (["delta", "workers=none"], "workers must be a whole number of at least 1, got none"),
        (["delta", "budget=small"], "budget must be full or tiny, got small"),
        (["delta", "--worker"], "unknown flag; did you mean workers=VALUE?"),
        (["delta", "seeds=a,b"], "seeds must be a list of whole numbers, got a,b"),
        (["delta", "trials=7,9"], "trials must be a single whole number, got 7,9"),
        (["delta", "storage=mongodb://x"], "must be journal, sqlite, or a URL"),
        (["report", "delta", "workers=2"], "unknown option of this command"),
        (["report", "delta", "num_steps=2"], "cannot change a sweep's settings"),
        (["delta_qwen3_1_7b", "plan=H1"], "plan=H1: unknown GPU; use one of B200, H200, H100"),
        (["report"], "required: NAME (a sweep from `atrium sweep list`)"),
        (["worker", "delta"], "there is no sweep delta"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("seeds: [", "sedes: ["), "unknown key sedes; did you mean seeds?"),
        (("choices: [", "choices: [-0.1, "), "divergence.delta must be at least 1e-12"),
        (
            ("space:", "space:\n  label: {choices: [a], when: {divergence.delta: [0.1]}}"),
            "label.when must name the arm, or a parameter before label, got divergence.delta; list it first",
        ),
    ],
)
def test_a_refused_sweep_leaves_no_files(changed, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(MINE.replace(*changed), encoding="utf-8")
    assert main(["sweep", "mine.yaml"]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.yaml"]


def test_the_command_line_changes_trials_and_baseline_alike():
    definition = sweep_definition("delta", {"seeds": "7,8", "name": "mine"}, ["num_steps=20"])
    assert definition.seeds == (7, 8)
    assert definition.name == "mine"
    assert definition.base[-1] == definition.baseline.base[-1] == "num_steps=20"
    tiny = sweep_definition("delta", {"budget": "tiny"}, [])
    assert tiny.name == "delta-tiny"
    assert "num_steps=3" in tiny.base
    assert "num_steps=3" in tiny.baseline.base


def test_a_sweep_that_lost_its_final_seeds_to_the_search_is_refused():
    with pytest.raises(ConfigError, match="must not contain seeds of the search, got 1000"):
        sweep_definition("delta", {"seeds": "1000,1001"}, [])


def test_the_table_shows_means_with_errors_windows_and_who_works_on_what():
    from rich.console import Console

    trial = {
        "stage": "search",
        "number": 3,
        "state": "running",
        "labels": ["ratio", "chi2"],
        "settings": {},
        "window": [0.8, None],
        "values": None,
        "standard_errors": None,
        "reason": None,
        "num_seeds": 5,
        "seeds": [{"state": "finished", "mean_at_k": 0.25}, {"state": "running", "mean_at_k": None}],
    }
    state = {
        "objectives": [{"metric": "mean_at_k"}],
        "stages": [{"name": "search", "num_ended": 3, "num_trials": 7}],
        "workers": [{"stage": "search", "trial": 3, "seed": 1, "step": 12, "num_steps": 40}],
        "trials": [trial],
    }
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(live_view(state))
    console.file.close()
    said = console.export_text()
    for part in (
        "search 3 of 7",
        "1 worker",
        "1/5, seed 1: step 12/40",
        "(25.0 %)",
        "ratio = chi2",
        "[0.800, ∞]",
    ):
        assert part in said
    assert (
        trial_values({**trial, "values": [0.5], "standard_errors": [0.01]}, ["mean_at_k"]) == "50.0 ± 1.0 %"
    )
    assert trial_values({**trial, "values": [1200.0], "standard_errors": [None]}, ["num_tokens"]) == "1,200"


def sweep_state(num_finished, num_trials=2, num_seeds=2, step=12):
    seeds = [{"state": "finished"}] * num_finished + [{"state": "running"}] * (num_finished < num_seeds)
    common = {"stage": "search", "num_seeds": num_seeds, "reason": None}
    return {
        "objectives": [{"metric": "mean_at_k"}],
        "stages": [{"name": "search", "num_ended": 1, "num_trials": num_trials}],
        "workers": [{"stage": "search", "trial": 1, "seed": 1, "step": step, "num_steps": 40}],
        "trials": [
            {**common, "number": 0, "state": "pruned", "seeds": [{"state": "pruned"}], "values": None,
             "standard_errors": None, "labels": ["a"]},
            {**common, "number": 1, "state": "running", "seeds": seeds},
        ],
    }  # fmt: skip


def test_a_sweep_says_how_many_runs_are_done_and_after_three_of_them_how_long_the_rest_takes():
    now = [100.0]
    progress = Progress(lambda: now[0])

    def words(num_finished, step=0, num_trials=2):
        return progress.words(sweep_state(num_finished, num_trials, num_seeds=8, step=step))

    assert words(0) == "8 of 16 runs, 0 s", "a pruned trial needs no more runs"
    now[0] += 90.0
    assert words(2) == "10 of 16 runs, 1:30"
    now[0] += 45.0
    assert words(3) == "11 of 16 runs, 2:15, about 3:45 left"
    assert words(3, step=20) == "11 of 16 runs, 2:15, about 2:54 left"
    assert words(3, num_trials=9) == "11 of at least 16 runs, 2:15, about 3:45 left for these"


def test_without_a_live_table_a_line_says_how_far_the_sweep_is_when_nothing_was_printed_for_long(capsys):
    now = [0.0]
    lines = Lines(lambda: now[0])
    for second in range(70):
        now[0] = float(second)
        lines.update({**sweep_state(0), "trials": sweep_state(0)["trials"][1:]})
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "0 of at least 2 runs, 30 s; search 1, seed 1: step 12/40",
        "0 of at least 2 runs, 1:00; search 1, seed 1: step 12/40",
    ]


def test_the_command_itself_loads_no_torch():
    code = "import sys, atrium.assemble.sweep_workers, atrium.assemble.sweep_report as report"
    code += "; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
