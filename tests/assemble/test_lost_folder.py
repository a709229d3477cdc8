"""A run directory that is removed during the run: the run ends with a message, and creates no second one."""

from __future__ import annotations

import shutil

import pytest

from atrium.base.errors import RunFolderError
from atrium.base.json_lines import read_json_lines
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, read_status


def _losing(monkeypatch, step, lose):
    """Call `lose` with the run directory once the metrics of `step` are recorded."""
    record = RunFolderWriter.step

    def log_and_lose(tracker, number, metrics):
        record(tracker, number, metrics)
        if number == step:
            lose(tracker.folder.path)

    monkeypatch.setattr(RunFolderWriter, "step", log_and_lose)


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_whose_folder_is_removed_fails_with_one_line_and_makes_none_anew(
    runs, monkeypatch, capsys, step
):
    _losing(monkeypatch, step, shutil.rmtree)
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl was removed or moved") as error:
        runs.train("num_steps=3", f"experiment_name=removed_{step}")
    assert "\n" not in str(error.value)
    assert list((runs.runs_dir / f"removed_{step}").iterdir()) == []
    assert "train --resume" not in capsys.readouterr().out, "it names a run that is not there"


def test_a_run_whose_folder_is_moved_goes_on_once_it_is_moved_back(runs, monkeypatch, tmp_path, same_record):
    undisturbed = runs.train("num_steps=3", "experiment_name=unmoved")
    places = []

    def move(path):
        places.append(path)
        path.rename(tmp_path / "elsewhere")

    with monkeypatch.context() as patched:
        _losing(patched, 2, move)
        with pytest.raises(RunFolderError, match="restore its folder"):
            runs.train("num_steps=3", "experiment_name=moved")
    assert not places[0].exists()
    assert len(read_json_lines(tmp_path / "elsewhere" / "metrics.jsonl").records) == 2
    (tmp_path / "elsewhere").rename(places[0])
    folder = runs.resume(RunFolder(places[0]))
    assert read_status(folder.status_file).state == RunState.FINISHED
    same_record(folder, undisturbed, step=3)
