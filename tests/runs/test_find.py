from __future__ import annotations

import json
import os
import time

import pytest

from atrium.base.errors import RunFolderError
from atrium.runs.find import (
    EVALUATED,
    TRAINED,
    WITH_CHECKPOINT,
    WITH_ROLLOUTS,
    WITH_SAMPLES,
    find_run,
    list_runs,
    short_name,
)
from atrium.runs.run_folder import RunFolder


def make_run(runs_dir, name, started=None, experiment="quickstart"):
    path = runs_dir / experiment / name
    path.mkdir(parents=True)
    status = {"format_version": 1, "state": "finished", "started": started or 0.0}
    (path / "status.json").write_text(json.dumps(status))
    return RunFolder(path)


@pytest.fixture
def runs_dir(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def three(runs_dir):
    return [
        make_run(runs_dir, "20260101-100000-atr-s0-aaaa"),
        make_run(runs_dir, "20260102-100000-atr-s1-bbbb"),
        make_run(runs_dir, "20260103-100000-grpo-s1-cccc", experiment="stress"),
    ]


def test_runs_are_listed_from_the_oldest_to_the_latest_across_experiments(runs_dir, three):
    assert [run.path for run in list_runs(runs_dir)] == [run.path for run in three]


def test_the_status_says_better_than_the_name_when_a_run_began(runs_dir, three):
    now = time.time()
    early = make_run(runs_dir, "20260104-100000-atr-s0-dddd", started=1.0)
    late = make_run(runs_dir, "20250101-100000-atr-s0-eeee", started=now)
    listed = [run.path for run in list_runs(runs_dir)]
    assert listed[0] == early.path
    assert listed[-1] == late.path
    assert find_run(runs_dir, "last").path == late.path


def test_last_is_the_latest_run_that_suits_the_command(runs_dir, three):
    trained, evaluated, empty = three
    evaluated.config_file.write_text('{"kind": "evaluation"}')
    (trained.checkpoint_path(4) / "policy").mkdir(parents=True)
    trained.rollouts_path(1).parent.mkdir()
    trained.rollouts_path(1).touch()
    assert find_run(runs_dir, "last").path == empty.path
    assert find_run(runs_dir, "last", last=TRAINED).path == empty.path
    assert find_run(runs_dir, "last", last=EVALUATED).path == evaluated.path
    assert find_run(runs_dir, "last", last=WITH_CHECKPOINT).path == trained.path
    assert find_run(runs_dir, "last", last=WITH_ROLLOUTS).path == trained.path
    empty.config_file.write_text('{"kind": "evaluation"}')
    assert find_run(runs_dir, "last", last=TRAINED).path == trained.path
    assert find_run(runs_dir, "cccc", last=TRAINED).path == empty.path, "a name means what it names"


def test_last_without_a_suitable_run_gives_the_reason(runs_dir, three):
    with pytest.raises(RunFolderError, match=r"last: no run in .* has a checkpoint; .*--runs-dir"):
        find_run(runs_dir, "last", last=WITH_CHECKPOINT)
    with pytest.raises(RunFolderError, match="contains no evaluation"):
        find_run(runs_dir, "last", last=EVALUATED)


def test_hidden_folders_and_files_are_no_runs_and_empty_folders_are(runs_dir, three):
    (runs_dir / ".cache" / "warmup").mkdir(parents=True)
    (runs_dir / "quickstart" / ".tmp-x").mkdir()
    (runs_dir / "README.md").write_text("#")
    (runs_dir / "quickstart" / "note.txt").write_text("#")
    (runs_dir / "quickstart" / "empty").mkdir()
    assert sorted(run.path.name for run in list_runs(runs_dir)) == sorted(
        ["empty", *(run.path.name for run in three)]
    )


def test_run_directly_in_the_runs_directory_is_found(runs_dir, three):
    moved = runs_dir / "moved"
    three[0].path.rename(moved)
    assert find_run(runs_dir, "moved").path == moved


def test_missing_runs_directory_has_no_runs_and_find_run_says_what_to_do(tmp_path):
    assert list_runs(tmp_path / "absent") == []
    with pytest.raises(RunFolderError, match=r"no runs in .*absent.*atrium train"):
        find_run(tmp_path / "absent", "last")


@pytest.mark.parametrize("wanted", ["aaaa", "s0-aaaa", "20260101-100000-atr-s0-aaaa", "20260101", "AAAA"])
def test_a_run_is_found_by_its_name_or_any_part_that_only_it_has(runs_dir, three, wanted):
    assert find_run(runs_dir, wanted).path == three[0].path


def test_a_run_is_found_by_experiment_and_name_and_by_path(runs_dir, three, monkeypatch):
    run = three[2]
    monkeypatch.chdir(runs_dir.parent)
    for wanted in (run.name, str(run.path), f"runs/{run.name}", f"runs/{run.name}/", f"./runs/{run.name}"):
        assert find_run(runs_dir, wanted).path.resolve() == run.path


def test_whole_names_take_precedence_over_ends_and_ends_over_other_parts(runs_dir, three):
    inner = make_run(runs_dir, "20260105-bbbb-s0-ffff")
    assert find_run(runs_dir, "bbbb").path == three[1].path
    longer = make_run(runs_dir, "x-20260105-bbbb-s0-ffff")
    assert find_run(runs_dir, inner.path.name).path == inner.path
    assert find_run(runs_dir, longer.path.name).path == longer.path


def test_name_that_matches_several_runs_is_refused_with_their_names(runs_dir, three):
    with pytest.raises(RunFolderError, match=r"matches 2 runs: .*aaaa, .*bbbb; give a longer"):
        find_run(runs_dir, "atr")


def test_a_wrong_name_is_answered_with_the_nearest_right_one(runs_dir, three):
    with pytest.raises(RunFolderError, match=r"did you mean 20260102-100000-atr-s1-bbbb\?"):
        find_run(runs_dir, "20260102-100000-atr-s1-bbbx")
    with pytest.raises(RunFolderError, match=r"the experiments are .*the latest runs are stress/"):
        find_run(runs_dir, "zzz")


HOSTILE = [
    "..",
    "../secret",
    "../../etc/passwd",
    "/etc",
    "quickstart/../../secret",
    "",
    " ",
    "a\x00b",
    "x" * 5000,
    "*",
    "[red]",
]


@pytest.mark.parametrize("wanted", HOSTILE)
def test_names_with_paths_outside_the_runs_directory_find_nothing(runs_dir, three, wanted, monkeypatch):
    (runs_dir.parent / "secret").mkdir()
    monkeypatch.chdir(runs_dir)
    with pytest.raises(RunFolderError) as error:
        find_run(runs_dir, wanted)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    "wanted", [".", "20260101-100000-atr-s0-aaaa", "..", "../quickstart/{run}/checkpoints/.."]
)
def test_relative_path_inside_the_runs_directory_finds_the_run(runs_dir, three, monkeypatch, wanted):
    run = three[0].path
    (run / "checkpoints").mkdir()
    monkeypatch.chdir({".": run, "..": run / "checkpoints"}.get(wanted, run.parent))
    found = find_run("elsewhere", wanted.format(run=run.name))
    assert found.path.parent.parent == runs_dir


def test_run_outside_the_runs_directory_is_found_by_path_but_not_by_name(
    runs_dir, three, tmp_path, monkeypatch
):
    outside = make_run(tmp_path / "elsewhere", "20260101-100000-atr-s0-9999")
    monkeypatch.chdir(runs_dir)
    assert find_run(runs_dir, str(outside.path)).path == outside.path
    with pytest.raises(RunFolderError):
        find_run(runs_dir, outside.path.name)


def test_the_short_name_of_a_run_finds_it_again(runs_dir, three):
    twin = make_run(runs_dir, "20260106-100000-atr-s0-aaaa")
    for run in [*three, twin]:
        assert find_run(runs_dir, short_name(runs_dir, run)).path == run.path
    assert short_name(runs_dir, three[1]) == "bbbb"


def test_last_with_samples_is_the_latest_evaluation_of_a_training_run_or_of_its_own(runs_dir, three):
    trained, evaluated, _ = three
    evaluated.config_file.write_text('{"kind": "evaluation"}')
    for run, written in ((evaluated, 1_000.0), (trained, 2_000.0)):
        path = run.evaluations_dir / "aime24" / "step-000004.parquet"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (written, written))
    assert find_run(runs_dir, "last", last=WITH_SAMPLES).path == trained.path
    os.utime(evaluated.evaluations_dir / "aime24" / "step-000004.parquet", (3_000.0, 3_000.0))
    assert find_run(runs_dir, "last", last=WITH_SAMPLES).path == evaluated.path


def test_reserved_folders_are_not_searched_for_runs(runs_dir):
    for reserved in ("reports", "sweeps", "mlflow.db"):
        make_run(runs_dir, "x", experiment=reserved)
    assert list_runs(runs_dir) == []
