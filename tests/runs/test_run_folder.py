from __future__ import annotations

import json
import re

import pytest

from atrium.base.errors import ConfigError, RunFolderError
from atrium.runs.branch import copy_until
from atrium.runs.layout import folder_size, remove, step_of
from atrium.runs.reader import read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import FORMAT_VERSION, RunState

HOSTILE_NAMES = [
    "",
    ".",
    "..",
    "../up",
    "a/b",
    "/etc",
    "a\\b",
    ".hidden",
    "a\x00b",
    "a\nb",
    "x" * 101,
    "ends.",
    "é",
    "-s",
]


def content(folder):
    """What the run goes on with, without what was set aside."""
    return {
        name: path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file()
        and path.name != "status.json"
        and not (name := str(path.relative_to(folder.path))).startswith("set-aside/")
    }


def without_times(name, data):
    """The content of a file with the time of each line left out."""
    return re.sub(rb'"time":[0-9.]+', b"", data) if name.endswith(".jsonl") else data


def test_new_run_directory_is_named_by_time_algorithm_seed_and_four_digits(tmp_path):
    folder = RunFolder.create(tmp_path, "quickstart", "atr", 7)
    assert folder.path.parent == tmp_path / "quickstart"
    assert re.fullmatch(r"\d{8}-\d{6}-atr-s7-[0-9a-f]{4}", folder.path.name)
    assert folder.name == f"quickstart/{folder.path.name}"
    assert read_overview(folder).state is RunState.STARTING


def test_runs_started_at_once_get_separate_directories(tmp_path):
    assert len({RunFolder.create(tmp_path, "quickstart", "atr", 0).path for _ in range(50)}) == 50


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_that_are_not_plain_folder_names_are_refused_and_create_nothing(tmp_path, name):
    runs = tmp_path / "runs"
    for experiment, algorithm in ((name, "atr"), ("quickstart", name)):
        with pytest.raises(ConfigError, match="must start with a letter or digit"):
            RunFolder.create(runs, experiment, algorithm, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sweeps", "Sweeps", "reports", "mlflow.db"])
def test_reserved_experiment_names_are_refused(tmp_path, name):
    with pytest.raises(
        ConfigError, match=f"experiment_name={name} is reserved .*use any name except sweeps"
    ) as error:
        RunFolder.create(tmp_path / "runs", name, "atr", 0)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_benchmarks_cannot_be_written_elsewhere(folder, name):
    with pytest.raises(ConfigError, match="benchmark"):
        folder.evaluation_path(name, 1)


def test_runs_dir_that_cannot_be_created_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunFolderError, match=r"cannot make a run directory in .*runs_dir") as error:
        RunFolder.create(tmp_path / "runs", "quickstart", "atr", 0)
    assert "\n" not in str(error.value)


def test_opening_a_folder_that_is_not_a_run_directory_is_refused(tmp_path, folder):
    with pytest.raises(RunFolderError, match="no run directory at"):
        RunFolder.open(tmp_path / "absent")
    with pytest.raises(RunFolderError, match="not a run directory"):
        RunFolder.open(tmp_path)
    assert RunFolder.open(str(folder.path)).path == folder.path


def test_configuration_is_recorded_unchanged(folder):
    config = {"seed": 0, "optimizer": {"learning_rate": 3e-4, "schedule": None}}
    folder.write_config(config)
    assert json.loads(folder.config_file.read_text()) == config


def test_configuration_with_a_secret_of_the_environment_is_refused(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse-battery")
    config = {"tracking": {"mirrors": [{"uri": "https://me:correct-horse-battery@host"}]}}
    with pytest.raises(
        ConfigError, match=r"tracking\.mirrors\[0\]\.uri .* MLFLOW_TRACKING_PASSWORD"
    ) as error:
        folder.write_config(config)
    assert "correct-horse" not in str(error.value)
    assert not folder.config_file.exists()


def test_overrides_are_a_yaml_list_without_secrets(folder, monkeypatch):
    import yaml

    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    folder.write_overrides(["algorithm=atr", "model.source='a: b'", "x=hunter2hunter2"])
    typed = yaml.safe_load(folder.overrides_file.read_text())
    assert typed == ["algorithm=atr", "model.source='a: b'", "x=[redacted]"]
    folder.write_overrides([])
    assert yaml.safe_load(folder.overrides_file.read_text()) == []


def test_log_lines_have_their_time_and_survive_odd_text(folder):
    folder.append_log("one\ntwo \udce9")
    lines = folder.log_file.read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in lines] == ["one", "two ?"]


def test_truncation_leaves_what_a_run_to_that_step_would_have_left(tmp_path, record):
    long = RunFolder.create(tmp_path, "a", "atr", 0)
    short = RunFolder.create(tmp_path, "b", "atr", 0)
    record(long, last=6).end(RunState.FINISHED)
    record(short, last=4).close()
    before = content(long)
    with long.metrics_file.open("ab") as file:
        file.write(b'{"step":7,"rollout/rew')
    (long.rollouts_dir / ".tmp-0a1b2c3d-step-000008.parquet").write_bytes(b"half")
    long.truncate_after(4)
    after, wanted = content(long), content(short)
    assert after.keys() == wanted.keys()
    for name, data in wanted.items():
        assert without_times(name, after[name]) == without_times(name, data)
        assert before[name].startswith(after[name])  # not rewritten with other times or digits


def test_truncation_moves_all_removed_records_to_set_aside(folder, record):
    record(folder).end(RunState.FINISHED)
    for step in (3, 6):
        folder.checkpoint_path(step).mkdir(parents=True)
    (folder.checkpoints_dir / "best.json").write_text('{"step": 6}')
    before = content(folder)
    aside = folder.truncate_after(3)
    assert (folder.checkpoint_steps(), folder.best_checkpoint_step()) == ((3,), None)
    assert (aside / "checkpoints" / "step-000006").is_dir()
    after = content(folder)
    taken = {str(path.relative_to(aside)): path.read_bytes() for path in aside.rglob("*") if path.is_file()}
    for name, data in before.items():
        assert after.get(name, b"") + taken.get(name, b"") == data
    assert folder.truncate_after(3) is None


def test_truncation_rewinds_the_status_and_drops_the_summary(folder, record):
    record(folder).end(RunState.FINISHED)
    folder.truncate_after(3)
    assert read_overview(folder).status.step == 3
    assert not folder.summary_file.exists()
    assert folder.evaluation_path("validation", 3).exists()
    assert not folder.evaluation_path("validation", 6).exists()


def test_truncating_to_step_minus_1_also_removes_records_from_before_training(folder, record):
    record(folder).close()
    folder.truncate_after(-1)
    assert folder.metrics_file.read_bytes() == folder.evaluations_file.read_bytes() == b""
    assert [path for path in folder.evaluations_dir.rglob("*") if path.is_file()] == []
    assert read_overview(folder).status.step == 0


def test_truncating_twice_or_beyond_the_end_changes_nothing_more(folder, record):
    record(folder).close()
    before = content(folder)
    folder.truncate_after(6)
    folder.truncate_after(100)
    assert content(folder) == before


def test_run_directory_of_a_newer_format_is_neither_locked_nor_truncated(folder, record):
    record(folder).close()
    status = json.loads(folder.status_file.read_text())
    folder.status_file.write_text(json.dumps({**status, "format_version": FORMAT_VERSION + 1}))
    before = content(folder)
    for change in (folder.lock, lambda: folder.truncate_after(0)):
        with pytest.raises(RunFolderError, match="newer Atrium"):
            change()
    assert content(folder) == before


def test_checkpoints_are_found_by_step_and_the_best_by_its_file(folder):
    assert (folder.checkpoint_steps(), folder.best_checkpoint_step()) == ((), None)
    for name in ("step-000040", "step-000005", "step-1000000", ".tmp-step-000050", "notes"):
        (folder.checkpoints_dir / name).mkdir(parents=True)
    (folder.checkpoints_dir / "step-000060").write_text("no folder")
    (folder.checkpoints_dir / "best.json").write_text('{"step": 40}')
    assert folder.checkpoint_steps() == (5, 40, 1_000_000)
    assert folder.best_checkpoint_step() == 40
    assert folder.checkpoint_path(40).name == "step-000040"
    for damaged in ("", "[]", '{"step": "40"}', '{"step": true}'):
        (folder.checkpoints_dir / "best.json").write_text(damaged)
        assert folder.best_checkpoint_step() is None


def test_steps_are_read_from_names_of_files_and_folders_only():
    assert [step_of(name) for name in ("step-000010", "step-000010.parquet", "step-7")] == [10, 10, 7]
    assert [step_of(name) for name in ("step-", "step-1.tmp", "xstep-1", "step--1", "step-1.parquet~")] == [
        None
    ] * 5


def test_removing_a_folder_does_not_follow_links_out_of_it(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x" * 1000)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    assert folder_size(inside) < 1000
    remove(inside / "link")
    (inside / "link").symlink_to(outside)
    remove(inside)
    assert (outside / "precious").exists()
    assert not inside.exists()


def test_branch_whose_status_does_not_fit_on_the_disk_is_explained_and_removed(tmp_path, no_room_beyond):
    parent, branch = (RunFolder.create(tmp_path / "runs", "quickstart", "atr", seed) for seed in (0, 1))
    parent.checkpoint_path(2).mkdir(parents=True)
    parent.provenance_file.write_text("{}")
    with no_room_beyond(100), pytest.raises(RunFolderError, match=r"cannot copy .*, or choose another"):
        copy_until(parent, 2, branch)
    assert not branch.path.exists()
