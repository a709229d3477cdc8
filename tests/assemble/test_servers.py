"""The folders of a run's servers: private, and gone when their trainer is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from atrium.assemble.servers import _private_folder
from atrium.base.errors import ConfigError
from atrium.engines.server.plugin import identity


def test_folders_of_killed_trainers_are_deleted_and_those_of_others_stay(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owners = {
        "killed": f"{socket.gethostname()} {identity(ended.pid)}",
        "alive": f"{socket.gethostname()} {identity(os.getpid())}",
        "elsewhere": f"another-machine {identity(ended.pid)}",
    }
    for name, owner in owners.items():
        (tmp_path / f"atrium-{name}").mkdir()
        (tmp_path / f"atrium-{name}" / "owner").write_text(owner)
    (tmp_path / "atrium-begun").mkdir()
    ended.kill()
    ended.communicate()
    made = _private_folder(tmp_path)
    assert made.stat().st_mode & 0o077 == 0
    assert {one.name for one in tmp_path.iterdir()} == {
        "atrium-alive",
        "atrium-elsewhere",
        "atrium-begun",
        made.name,
    }


@pytest.mark.parametrize("setting", ["rollout.weights_dir", "TMPDIR"])
def test_the_setting_of_a_folder_that_cannot_be_used_is_named(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"^{setting}: a folder cannot be created in .*/missing"):
        _private_folder(tmp_path / "missing", setting)
