from __future__ import annotations

import json

import numpy as np
import pytest

from atrium.base.atomic import explained, replacing, write_json, write_text
from atrium.base.errors import RunFolderError


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "status.json"
    write_text(path, "old")

    def fail_half_way():
        with replacing(path) as temporary:
            temporary.write_text("half of the new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_replaces_the_old_one_as_a_whole(tmp_path):
    path = tmp_path / "status.json"
    write_text(path, "a much longer old text")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_written_json_is_standard(tmp_path):
    path = tmp_path / "value.json"
    write_json(
        path,
        {
            "nan": float("nan"),
            "up": float("inf"),
            "down": -np.float64(np.inf),
            "scalar": np.float32(0.5),
            "count": np.int64(3),
            "path": tmp_path,
            "pair": (1, None),
            "flag": True,
        },
    )

    def refuse(name):
        raise AssertionError(f"{name} is not standard JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "nan": "NaN",
        "up": "Infinity",
        "down": "-Infinity",
        "scalar": 0.5,
        "count": 3,
        "path": str(tmp_path),
        "pair": [1, None],
        "flag": True,
    }


def test_value_that_json_cannot_represent_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(TypeError, match="object"):
        write_json(tmp_path / "value.json", {"thing": object()})
    assert list(tmp_path.iterdir()) == []


def test_disk_error_names_the_action_and_the_path(tmp_path):
    path = tmp_path / "a_file" / "status.json"
    (tmp_path / "a_file").write_text("")
    with (
        pytest.raises(RunFolderError, match=r"cannot write .*status\.json: Not a directory"),
        explained("write", path),
    ):
        write_text(path, "new")
