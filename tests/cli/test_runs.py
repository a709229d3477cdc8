from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.run_records import evaluated_sample, leave, sum_problem, write_run

import atrium as atrium_package
from atrium.assemble import doctor
from atrium.assemble.doctor import requirements, unmet
from atrium.base.metrics import is_repeatable
from atrium.base.records import BenchmarkResult, FinishReason
from atrium.cli.app import main
from atrium.config.compose import compose
from atrium.runs import provenance
from atrium.runs.find import list_runs
from atrium.runs.reader import read_metrics
from atrium.runs.run_folder import RunFolder
from atrium.runs.samples_document import spread
from atrium.runs.status import RunState

HOSTILE_TEXT = "<script>\x1b[2J[red]\\boxed{5}"


@functools.cache
def composed(*overrides):
    return compose(overrides)


def evaluated(step, benchmark, text):
    mean = 0.2 + step / 10
    samples = [
        evaluated_sample(
            sum_problem(index),
            is_correct=bool(step),
            text=text,
            extracted=None,
            finish_reason=FinishReason.STOP if step else FinishReason.LENGTH,
        )
        for index in range(10)
    ]
    results = {
        "k": 8,
        "mean_at_k": mean,
        "pass_at_k": mean + 0.1,
        "interval_over_problems": [mean - 0.1, mean + 0.1],
        "interval_sampling": [mean - 0.05, mean + 0.05],
        "num_problems": 10,
        "pass_at_intervals": {"8": {"over_problems": [mean, mean + 0.2]}},
        "breakdown": {"level": {"2": {"mean_at_k": mean}, "3": {"mean_at_k": mean / 2}}},
    }
    return BenchmarkResult(step=step, benchmark=benchmark, samples=samples, results=results)


def make_run(
    runs_dir, *overrides, end=RunState.FINISHED, last=6, checkpoints=(), text="a = \\boxed{1}", times=None
):
    """A run as training leaves it, of 6 steps, with validation every third."""
    config = composed("num_steps=6", *overrides)
    folder = RunFolder.create(runs_dir, config.experiment_name, config.algorithm.name, config.seed)
    folder.write_overrides(overrides)
    folder.write_config(config.model_dump(mode="json"))

    def evaluations(step):
        for benchmark in ("arithmetic-test", "arithmetic-validation"):
            if step in (0, 6) or (step == 3 and benchmark == "arithmetic-validation"):
                yield evaluated(step, benchmark, text)

    writer = write_run(
        folder,
        num_steps=6,
        last=last,
        metrics=lambda step: {"rollout/reward": step / 10, "objective/clip_low_frac": 0.01, **(times or {})},
        evaluations=evaluations,
    )
    for step in checkpoints:
        policy = folder.checkpoint_path(step) / "policy"
        policy.mkdir(parents=True)
        (policy / "config.json").write_text("{}")
        (policy / "tokenizer.json").write_text("{}")
        (policy / "model.safetensors").write_bytes(bytes([step]) * 1000)
        (policy.parent / "optimizer.safetensors").write_bytes(bytes(2000))
    leave(writer, end, "the loss is not finite" if end is RunState.FAILED else None)
    return folder


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def run(runs_dir):
    return make_run(runs_dir, "algorithm=grpo", "seed=3", checkpoints=(2, 4, 6))


@pytest.fixture
def atrium(capsys):
    """Run a command line; its exit code, output and errors."""

    def call(*argv):
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def fails(result, part):
    """The command failed with one line that contains `part` and the code 2."""
    code, out, err = result
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert part in err
    return True


# atrium runs


def test_runs_lists_what_each_run_is_and_has_learned(runs_dir, run, atrium):
    make_run(runs_dir, "experiment=stress", end=RunState.INTERRUPTED, last=4)
    code, out, err = atrium("runs")
    header, first, second = out.splitlines()
    assert (code, err) == (0, "")
    assert " ".join(header.split()) == "run algorithm divergence seed state step Mean@8, % benchmark age"
    assert re.fullmatch(
        rf"{run.name}  grpo +ratio 0.2 +3  finished +6/6  20.0 → 80.0  arithmetic-test +just now *",
        first,
    )
    assert re.search(
        r"stress/\S+-atr-s0-.* atr +kl3 0.0231 +0  interrupted +4/6  20.0 → 50.0  arithmetic-val",
        second,
    )


def test_runs_can_be_filtered_and_none_is_said(runs_dir, run, atrium):
    make_run(runs_dir, "experiment=stress")
    assert len(atrium("runs", "STRESS")[1].splitlines()) == 2
    assert atrium("runs", "nothing-like-it")[1].startswith("no run in runs has nothing-like-it in its name")
    assert atrium("runs", "--runs-dir", "absent")[1].startswith("no runs in absent")


def test_runs_in_a_narrow_terminal_drops_what_the_name_says_too(run, atrium, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    header, row, note = atrium("runs")[1].splitlines()
    assert "a wider terminal also shows: benchmark, seed, algorithm, divergence" in note
    assert "seed" not in header
    assert run.name in row
    assert "20.0 → 80.0" in row


def test_runs_as_json_hold_everything_known(run, atrium):
    code, out, _ = atrium("runs", "--json")
    [described] = json.loads(out)
    assert code == 0
    assert (described["name"], described["state"], described["step"]) == (run.name, "finished", 6)
    assert (described["algorithm"], described["seed"], described["experiment"]) == ("grpo", 3, "quickstart")
    assert described["divergence"] == {"kind": "ratio", "delta": 0.2}
    assert described["evaluations"]["arithmetic-test"]["last"]["mean_at_k"] == pytest.approx(0.8)
    assert described["problems"] == []


def test_runs_of_any_state_and_in_any_disrepair_are_listed_with_a_reason(runs_dir, atrium):
    make_run(runs_dir, end=RunState.RUNNING, last=2)
    make_run(runs_dir, end=RunState.KILLED, last=3)
    make_run(runs_dir, end=RunState.FAILED, last=1)
    (runs_dir / "quickstart" / "empty").mkdir()
    newer, damaged = make_run(runs_dir), make_run(runs_dir)
    status = json.loads(newer.status_file.read_text())
    newer.status_file.write_text(json.dumps({**status, "format_version": 5}))
    damaged.status_file.write_text('{"state": "run')
    damaged.config_file.write_text("")
    code, out, _ = atrium("runs")
    assert code == 0
    for part in (
        "running",
        "killed",
        "failed",
        "quickstart/empty: the folder is empty",
        "newer Atrium (format 5",
        "status.json is not valid JSON; config.json is not valid JSON",
        "the loss is not finite",
    ):
        assert part in out
    states = {entry["state"] for entry in json.loads(atrium("runs", "--json")[1])}
    assert states == {"running", "killed", "failed", "finished", "unknown"}


def test_two_hundred_runs_are_listed_in_a_second(runs_dir, run, atrium):
    for index in range(200):
        copy = run.path.with_name(f"20260101-000000-atr-s0-{index:04x}")
        copy.mkdir()
        for name in ("status.json", "summary.json", "config.json"):
            shutil.copy(run.path / name, copy / name)
    started = time.process_time()
    assert len(atrium("runs")[1].splitlines()) == 202
    assert time.process_time() - started < 2.0


# atrium show


def test_show_tells_settings_curves_evaluations_and_samples(run, atrium):
    code, out, err = atrium("show", run.path.name)
    assert (code, err) == (0, "")
    for pattern in (
        rf"finished  {run.name}  step 6 of 6",
        r"algorithm\.name +grpo +atr",
        r"divergence\.kind +ratio +kl3",
        r"\nseed +3 +0\n",
        r"num_steps +6 +80\n",
        r"reward +0\.1 +▁▂▄▅▇█ +0\.6",
        r"clip low, % +1\.0  ▁▁▁▁▁▁ +1\.0\n",
        r"arithmetic-test, 10 problems, 8 samples each",
        r"\n6 +80\.0 \[70\.0, 90\.0\] +\[75\.0, 85\.0\] +90\.0 \[80\.0, 100\.0\]\n",
        r"by level, in %:  2: 20 → 80   3: 10 → 40",
        r"the same arithmetic-test problems before and after",
        r"gold: 2\n +step 0 +incorrect +a = \\boxed\{1\}  \(cut off\)\n +step 6 +correct +a = \\boxed\{1\}\n",
    ):
        assert re.search(pattern, out), pattern
    assert "optimizer" not in out


def test_show_says_what_sampling_beside_training_allows(runs_dir, atrium):
    times = {"time/rollout_s": 6.0, "time/update_s": 2.0, "time/step_s": 8.5}
    run = make_run(runs_dir, times=times)
    for line in (
        "sampling and training (medians of 5 steps)",
        "a step takes 8.5 s: sampling 6 s on 1 engine, training 2 s on 1 trainer, neither 0.5 s",
        "each on its own devices (rollout.lag=1 rollout.placement=server): at least 6.5 s, 1.31 times",
        "with 3 to 1 devices, sampling to training: at least 2.5 s with 3 engines, if sampling scales",
    ):
        assert line in atrium("show", run.path.name, "--samples", "0")[1]
    served = ("rollout=vllm", "rollout.placement=server", "rollout.num_servers=2", "rollout.lag=2", "seed=7")
    waits = times | {"time/batch_wait_s": 4.25, "time/step_s": 6.75}
    _, printed, _ = atrium("show", make_run(runs_dir, *served, times=waits).path.name)
    assert "sampling 6 s on 2 engines, training 2 s on 1 trainer, neither 0.5 s" in printed
    assert "both at once: at least 6.5 s, of which 96.3 % is reached" in printed
    assert "with 6 to 1 devices" in printed


def test_show_takes_last_and_any_number_of_samples(run, atrium):
    assert atrium("show", "last", "--samples", "0")[1].count("gold:") == 0
    assert atrium("show", "last", "--samples", "99")[1].count("gold:") == 10
    assert fails(
        atrium("show", "last", "--samples", "-1"), "--samples: expected a whole number of at least 0, got -1"
    )
    assert fails(atrium("show", "last", "--samples", "few"), "at least 0, got few")


def test_show_prints_text_of_models_as_text(runs_dir, atrium):
    make_run(runs_dir, text=HOSTILE_TEXT)
    _, out, _ = atrium("show", "last")
    assert "<script>\\x1b[2J[red]\\boxed{5}" in out
    assert "\x1b" not in out


def test_show_of_a_broken_run_says_what_is_wrong_and_shows_the_rest(runs_dir, run, atrium):
    for path in run.evaluations_dir.rglob("*.parquet"):
        path.write_bytes(b"damaged")
    run.config_file.write_text("{")
    with run.metrics_file.open("ab") as file:
        file.write(b'{"half')
    code, out, _ = atrium("show", "last")
    assert code == 0
    assert "config.json is not valid JSON" in out
    assert "missing or damaged" in out
    assert "▁▂▄▅▇█" in out


def test_show_of_an_empty_folder_and_of_a_running_run(runs_dir, atrium):
    (runs_dir / "quickstart" / "empty").mkdir(parents=True)
    assert "the folder is empty" in atrium("show", "quickstart/empty")[1]
    make_run(runs_dir, end=RunState.RUNNING, last=2)
    assert "step 2 of 6" in atrium("show", "last")[1]


def test_show_names_the_nearest_run(run, atrium):
    wrong = run.path.name[:-1] + "z"
    assert fails(atrium("show", wrong), f"did you mean {run.path.name}?")
    assert fails(atrium("show", "../../etc/passwd"), "there is no run '../../etc/passwd'")
    assert fails(atrium("show"), "the following arguments are required: RUN")


def test_samples_are_spread_evenly():
    assert spread(list("abcdefghij"), 2) == ["c", "h"]
    assert spread(list("abc"), 5) == ["a", "b", "c"]
    assert spread([], 3) == []


# atrium rerun


def test_rerun_hands_the_stored_settings_to_training_which_checks_them(run, atrium):
    config = json.loads(run.config_file.read_text())
    run.config_file.write_text(json.dumps({**config, "num_steps": -7}))
    assert fails(atrium("rerun", "last"), "num_steps must be at least 1, got -7")


@pytest.mark.full
def test_a_rerun_repeats_a_run_bit_for_bit(runs_dir, atrium):
    assert atrium("train", "debug=tiny_steps")[0] == 0
    assert atrium("rerun", "last")[0] == 0
    first, second = list_runs(runs_dir)
    assert json.loads(first.config_file.read_text()) == json.loads(second.config_file.read_text())
    one, other = (read_metrics(folder).columns for folder in (first, second))
    assert one.keys() == other.keys()
    for name in filter(is_repeatable, one):
        assert np.array_equal(one[name], other[name], equal_nan=True), name


def test_rerun_without_settings_says_so(run, atrium):
    run.config_file.unlink()
    assert fails(atrium("rerun", "last"), "has no config.json")


# atrium export


def exported_step(folder):
    return (folder / "model.safetensors").read_bytes()[0]


def test_export_writes_the_latest_policy_and_how_to_load_it(run, atrium):
    code, out, _ = atrium("export", "last")
    target = run.path / "export" / "step-000006"
    assert code == 0
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md",
        "atrium.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert exported_step(target) == 6
    *lines, _, command = [line.strip() for line in out.splitlines()[-6:]]
    assert command == f"atrium evaluate model={target} benchmark=arithmetic"
    assert repr(str(target)) in lines[0]
    compile("\n".join(lines), "printed", "exec")
    card = (target / "README.md").read_text()
    assert "with the method grpo, seed 3" in card
    assert "| arithmetic-test | " in card
    assert f"- Run `{run.name}`, step 6" in card
    assert str(target) not in card


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"benchmark": {"kind": "problems", "name": "aime24"}}, "benchmark=aime24"),
        ({"benchmark": {"kind": "problems", "name": "my_own"}}, "benchmark=NAME"),
        (
            {"benchmark": {"kind": "held_out"}, "dataset": {"kind": "problems", "name": "gsm8k"}},
            "dataset=gsm8k benchmark=held_out",
        ),
    ],
)
def test_export_prints_the_evaluation_on_the_benchmark_of_the_run(run, atrium, tmp_path, changes, options):
    run.config_file.write_text(json.dumps(json.loads(run.config_file.read_text()) | changes))
    _, out, _ = atrium("export", "last", "--to", "my export")
    expected = f"'model={tmp_path / 'my export'}' {options}"
    assert out.splitlines()[-1].strip() == f"atrium evaluate {expected}"


def test_export_takes_its_run_as_a_flag_as_evaluate_does(run, atrium):
    assert atrium("export", "--run", "last")[0] == 0
    assert exported_step(run.path / "export" / "step-000006") == 6
    assert fails(atrium("export", "last", "--run", "last"), "RUN and --run have the same meaning")
    assert fails(atrium("export"), "RUN")


def test_export_takes_the_best_or_a_step_and_a_place(run, atrium, tmp_path):
    (run.checkpoints_dir / "best.json").write_text('{"step": 4, "value": 0.5}')
    assert atrium("export", "last", "--best", "--to", "best")[0] == 0
    assert exported_step(tmp_path / "best") == 4
    assert atrium("export", "last", "--step", "2", "--to", "deep/down/two")[0] == 0
    assert exported_step(tmp_path / "deep" / "down" / "two") == 2


def test_export_of_what_is_not_there_names_what_is(run, atrium, runs_dir):
    assert fails(
        atrium("export", "last", "--step", "3"),
        "such as --step 2 (available: 2, 4, 6)",
    )
    assert fails(atrium("export", "last", "--best"), "no best checkpoint")
    (run.checkpoints_dir / "best.json").write_text('{"step": 5}')
    assert fails(atrium("export", "last", "--best"), "no best checkpoint")
    assert fails(atrium("export", "last", "--best", "--step", "2"), "not allowed with")
    make_run(runs_dir)
    assert fails(atrium("export", "last"), "has no checkpoint; choose another run")


def test_export_refuses_a_policy_that_is_not_complete(run, atrium):
    (run.checkpoint_path(6) / "policy" / "model.safetensors").unlink()
    assert fails(atrium("export", "last"), "not a complete policy")
    assert not (run.path / "export").exists()


def test_export_replaces_an_export_only_when_forced(run, atrium, tmp_path):
    assert atrium("export", "last", "--step", "2", "--to", "model")[0] == 0
    assert fails(atrium("export", "last", "--to", "model"), "replace it with --force")
    assert exported_step(tmp_path / "model") == 2
    assert atrium("export", "last", "--to", "model", "--force")[0] == 0
    assert exported_step(tmp_path / "model") == 6


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_export_never_replaces_what_is_no_export(run, atrium, tmp_path, force):
    home = tmp_path / "home"
    (home / "documents").mkdir(parents=True)
    (home / "config.json").write_text("{}")
    (tmp_path / "a_file").write_text("precious")
    (tmp_path / "link").symlink_to(home)
    assert fails(atrium("export", "last", "--to", "home", *force), "not an exported policy")
    assert fails(atrium("export", "last", "--to", "a_file", *force), "not a folder")
    assert fails(atrium("export", "last", "--to", "link", *force), "not a folder")
    policy = run.checkpoint_path(6) / "policy"
    assert fails(atrium("export", "last", "--to", str(policy), *force), "must not be inside the checkpoint")
    for inside in (policy / "deep", policy.parent / "mine"):
        assert fails(
            atrium("export", "last", "--to", str(inside), *force), "must not be inside the checkpoint"
        )
    assert (home / "documents").is_dir()
    assert (tmp_path / "a_file").read_text() == "precious"
    assert (policy / "model.safetensors").is_file()


# atrium clean


def everything(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def listed(out):
    return {line.split("  ")[-2].rpartition("runs/")[2] for line in out.splitlines() if "  runs/" in line}


def test_clean_lists_what_can_go_and_deletes_nothing(runs_dir, run, atrium):
    (run.checkpoints_dir / "best.json").write_text('{"step": 2}')
    (runs_dir / ".cache" / "warmup").mkdir(parents=True)
    (runs_dir / ".cache" / "warmup" / "model").write_bytes(bytes(5000))
    killed = make_run(runs_dir, end=RunState.KILLED)
    before = everything(runs_dir)
    code, out, _ = atrium("clean")
    assert code == 0
    assert everything(runs_dir) == before
    assert listed(out) == {".cache/warmup", f"{run.name}/checkpoints/step-000004", killed.name}
    assert "5 kB  runs/.cache/warmup" in out
    assert "3 kB  runs/" in out
    assert "`atrium clean --yes` deletes these files" in out


def test_clean_with_yes_deletes_exactly_that(runs_dir, run, atrium):
    (run.checkpoints_dir / "best.json").write_text('{"step": 2}')
    (runs_dir / ".cache" / "warmup").mkdir(parents=True)
    interrupted = make_run(runs_dir, end=RunState.INTERRUPTED, last=4, checkpoints=(2, 4))
    killed = make_run(runs_dir, end=RunState.KILLED)
    resumable = make_run(runs_dir, end=RunState.KILLED, last=4, checkpoints=(2, 4))
    code, out, _ = atrium("clean", "--yes")
    assert code == 0
    assert "freed" in out
    assert run.checkpoint_steps() == (2, 6)
    assert interrupted.checkpoint_steps() == resumable.checkpoint_steps() == (2, 4)
    assert not killed.path.exists()
    assert list((runs_dir / ".cache").iterdir()) == []
    assert atrium("clean")[1] == "nothing to clean\n"


def test_clean_can_be_confined_and_takes_resumable_runs_only_when_asked(runs_dir, run, atrium):
    (runs_dir / ".cache" / "warmup").mkdir(parents=True)
    resumable = make_run(runs_dir, end=RunState.KILLED, last=4, checkpoints=(2, 4))
    assert listed(atrium("clean", "--caches")[1]) == {".cache/warmup"}
    assert listed(atrium("clean", "--checkpoints")[1]) == {
        f"{run.name}/checkpoints/step-00000{step}" for step in (2, 4)
    }
    out = atrium("clean", "--killed")[1]
    assert listed(out) == {resumable.name}
    assert "killed at step 4 of 6, can be resumed from step 4" in out


def test_clean_leaves_running_and_locked_runs_and_their_caches_alone(runs_dir, run, atrium):
    (runs_dir / ".cache" / "warmup").mkdir(parents=True)
    make_run(runs_dir, end=RunState.RUNNING, last=4, checkpoints=(2, 4))
    with run.lock():
        before = everything(runs_dir)
        out = atrium("clean", "--yes")[1]
        assert everything(runs_dir) == before
    assert out.count("kept: ") == 2
    assert "is in use by process" in out
    assert "0 B freed" in out


def test_clean_follows_no_link_out_of_the_runs_directory(runs_dir, run, atrium, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (runs_dir / ".cache").mkdir()
    (runs_dir / ".cache" / "linked").symlink_to(outside)
    shutil.rmtree(run.checkpoint_path(2))
    run.checkpoint_path(2).symlink_to(outside)
    assert atrium("clean", "--yes")[0] == 0
    assert (outside / "precious").exists()
    assert not (runs_dir / ".cache" / "linked").is_symlink()


@pytest.mark.parametrize("linked", ["experiment", "run", "checkpoints"])
def test_clean_deletes_nothing_outside_the_runs_directory_behind_a_link(run, atrium, tmp_path, linked):
    place = {"experiment": run.path.parent, "run": run.path, "checkpoints": run.checkpoints_dir}[linked]
    outside = tmp_path / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    before = everything(outside)
    code, out, _ = atrium("clean", "--yes")
    assert code == 0
    assert everything(outside) == before
    assert out.count("kept: it is in ") == 2
    assert "0 B freed" in out
    assert out.count("kept: it is in ") == atrium("clean")[1].count("kept: it is in ")


def test_clean_keeps_caches_in_a_folder_that_is_not_a_runs_directory(tmp_path, atrium):
    (tmp_path / ".cache" / "of_other_programs").mkdir(parents=True)
    assert atrium("clean", "--yes", "--runs-dir", str(tmp_path))[1] == "nothing to clean\n"
    assert (tmp_path / ".cache" / "of_other_programs").is_dir()


# atrium doctor


def test_doctor_finds_this_environment_fit(runs_dir, atrium):
    code, out, err = atrium("doctor")
    assert (code, err) == (0, "")
    for subject in (
        "python",
        "packages",
        "cpu",
        "gpu",
        "memory",
        "runs directory",
        "threads",
        "git",
        "extra gpu",
    ):
        assert re.search(rf"^(ok|--)  {subject} ", out, re.MULTILINE), subject
    assert out.endswith("ready to train\n")
    assert not runs_dir.exists()


def test_doctor_as_json_has_a_level_for_every_finding(runs_dir, atrium):
    code, out, _ = atrium("doctor", "--json")
    findings = json.loads(out)
    assert code == 0
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    assert all(finding["text"] for finding in findings)


def test_doctor_fails_where_the_runs_directory_cannot_be_written(tmp_path, atrium):
    (tmp_path / "a_file").write_text("")
    code, out, _ = atrium("doctor", "--runs-dir", str(tmp_path / "a_file"))
    assert code == 1
    assert re.search(r"^!!  runs directory .* cannot be written", out, re.MULTILINE)
    assert out.endswith("missing requirements of training: 1\n")


def test_doctor_knows_requirements_of_the_base_and_of_the_extras():
    wanted = requirements()
    assert any(requirement.startswith("torch") for requirement in wanted[""])
    assert any(requirement.startswith("vllm") for requirement in wanted["gpu"])
    absent = "atrium-test-no-such-package"
    assert unmet(f"{absent}>=1") == f"{absent} is not installed (needed: {absent}>=1)"
    assert unmet("numpy<1").startswith("numpy ")
    assert unmet("numpy<1").endswith("is installed, expected <1")
    assert unmet("numpy") is None
    assert unmet(f"{absent}>=1; platform_system == 'No such system'") is None
    assert unmet("numpy<1; platform_system != 'No such system'").startswith("numpy ")


def test_doctor_keeps_the_platform_of_an_installed_packages_requirement(tmp_path, monkeypatch):
    lines = ["a>=1; (platform_system == 'Windows') and extra == 'gpu'", "b; extra == 'gpu'", "c<2"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(doctor.atrium, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert requirements() == {"": ["c<2"], "gpu": ["a>=1; (platform_system == 'Windows')", "b"]}


def test_doctor_names_every_extra_and_no_other():
    assert {"", doctor.PLATFORM, *doctor._EXTRAS} == set(requirements())


@pytest.mark.parametrize(
    ("driver", "built", "level"),
    [
        ((12, 8), (13, 0), "missing"),
        ((13, 0), (13, 0), "ok"),
        ((13, 0), (12, 8), "ok"),
        (None, (13, 0), None),
    ],
)
def test_doctor_compares_the_drivers_cuda_with_torchs(monkeypatch, driver, built, level):
    monkeypatch.setattr("atrium.runs.provenance.driver_cuda", lambda: driver)
    monkeypatch.setattr(doctor, "torch_cuda", lambda: built)
    found = list(doctor._cuda())
    assert [finding.level for finding in found] == ([level] if level else [])
    if level == "missing":
        assert (
            "the driver supports CUDA 12.8, torch was built with 13.0; install a newer driver"
            in found[0].text
        )


def test_doctor_reads_versions_of_cuda_where_they_stand(monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    assert doctor.torch_cuda() == (13, 0)
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    assert doctor.torch_cuda() is None
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert provenance.driver_cuda() == (13, 0)


def test_doctor_looks_for_what_kernels_are_built_with_and_for_a_vllm_that_fits(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr("atrium.base.compilers.sysconfig.get_path", lambda name: str(tmp_path))
    (lacking,) = doctor._compiler()
    assert lacking.level == "note"
    assert re.search(r"a C compiler \(gcc\) and .*Python\.h \(on Debian", lacking.text)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/gcc")
    assert [finding.level for finding in doctor._compiler()] == ["ok"]
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", {"vllm": "0.24.0"}.get)
    (other,) = doctor._vllm()
    assert other.text.startswith("rollout.engine=vllm requires vllm 0.25 to 0.33, got 0.24.0")


def test_doctor_answers_where_packages_are_missing_and_says_which(tmp_path):
    """In an interpreter without site-packages: only the standard library and Atrium's own source."""
    source = str(Path(atrium_package.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {source!r})\nfrom atrium.cli.doctor import main; sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "ok  python" in done.stdout
    assert re.search(r"^!!  package +torch is not installed", done.stdout, re.MULTILINE)
    assert "missing requirements of training" in done.stdout


# what all of them share

COMMANDS = ("runs", "show", "rerun", "export", "clean", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, atrium):
    code, out, err = atrium(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: atrium {command}")
    assert "--runs-dir" in out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "arguments", [["last", "--no-such-option"], ["last", "one", "too", "many"], ["--runs-di", "x"]]
)
def test_wrong_command_lines_are_one_line_with_code_2(command, arguments, run, atrium):
    assert fails(atrium(command, *arguments), f"atrium {command} --help")


@pytest.mark.parametrize("command", ["runs", "show", "clean", "export"])
def test_runs_dir_that_is_a_file_is_one_line_with_exit_code_2(command, tmp_path, atrium):
    (tmp_path / "a_file").write_text("")
    arguments = ["last"] if command in ("show", "export") else []
    assert fails(atrium(command, *arguments, "--runs-dir", str(tmp_path / "a_file")), "Not a directory")


def test_these_commands_load_no_torch(run):
    code = (
        "import sys\nfrom atrium.cli.app import main\n"
        "for command in (['runs'], ['show', 'last'], ['export', 'last'], ['clean'], ['doctor']):\n"
        "    assert main(command) == 0, command\n"
        "    assert 'torch' not in sys.modules, command\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, stdout=subprocess.DEVNULL)
