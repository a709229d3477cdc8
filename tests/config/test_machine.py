"""The rules for `auto`, and what is read about the machine for them."""

from __future__ import annotations

import psutil
import pytest

from atrium.config import machine
from atrium.config.machine import AUTO_KEYS, Machine, num_usable_cores, resolve_auto, this_machine

AUTO = {key.removeprefix("compute."): "auto" for key in AUTO_KEYS}
GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True)
CPU = Machine(num_cores=6, requested_threads=None, has_cuda=False)


def _resolved(kind, on, **given):
    return resolve_auto({"model": {"kind": kind}, "compute": {**AUTO, **given}}, on)["compute"]


def test_the_built_in_model_runs_on_one_cpu_thread_wherever_it_is():
    expected = {
        "device": "cpu",
        "num_processes": 1,
        "dtype": "float32",
        "num_threads": 1,
        "micro_batch_tokens": 16384,
        "recompute_activations": False,
        "packing": True,
        "compile": False,
    }
    assert _resolved("tiny", CPU) == _resolved("tiny", GPU) == expected


def test_other_models_use_what_the_machine_has():
    assert _resolved("hub", CPU) == {
        "device": "cpu",
        "num_processes": 1,
        "dtype": "float32",
        "num_threads": 6,
        "micro_batch_tokens": 4096,
        "recompute_activations": False,
        "packing": "auto",
        "compile": False,
    }
    assert _resolved("hub", GPU) == {
        "device": "cuda",
        "num_processes": 1,
        "dtype": "bfloat16",
        "num_threads": 16,
        "micro_batch_tokens": "auto",  # measured once the model is there
        "recompute_activations": "auto",
        "packing": "auto",
        "compile": "auto",  # until packing is settled
    }


def test_other_rules_follow_a_device_that_was_chosen():
    assert _resolved("hub", GPU, device="cpu")["dtype"] == "float32"
    assert _resolved("tiny", GPU, device="cuda")["dtype"] == "float32"


def test_what_is_given_stays():
    given = {
        "device": "cuda",
        "num_processes": 2,
        "dtype": "bfloat16",
        "num_threads": 3,
        "micro_batch_tokens": 7,
        "recompute_activations": True,
        "packing": False,
        "compile": True,
    }
    assert _resolved("tiny", CPU, **given) == given


def test_there_is_a_process_per_gpu_and_the_cores_are_shared_among_them():
    node = Machine(num_cores=16, requested_threads=None, has_cuda=True, num_gpus=8)
    on_gpus = _resolved("hub", node)
    assert (on_gpus["num_processes"], on_gpus["num_threads"]) == (8, 2)
    assert _resolved("hub", node, device="cpu")["num_processes"] == 1
    assert _resolved("hub", CPU, num_processes=4)["num_threads"] == 1


def test_visible_gpus_are_those_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3,GPU-1a")
    assert machine.visible_gpus() == ("2", "3", "GPU-1a")
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert machine.visible_gpus() == ()


def test_threads_asked_for_in_the_environment_are_given():
    assert _resolved("tiny", Machine(num_cores=6, requested_threads=2, has_cuda=False))["num_threads"] == 2


def test_the_input_is_left_alone_and_malformed_input_is_passed_on():
    data = {"model": {"kind": "tiny"}, "compute": dict(AUTO)}
    resolve_auto(data, CPU)
    assert data["compute"] == AUTO
    assert resolve_auto({"compute": 3}, CPU) == {"compute": 3}
    assert resolve_auto({"model": None, "compute": AUTO}, CPU)["compute"] == AUTO


@pytest.mark.parametrize(("text", "expected"), [("4", 4), ("4,2", 4), ("", None), ("0", None), ("x", None)])
def test_the_environments_wish_is_read(monkeypatch, text, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert this_machine().requested_threads == expected


def test_a_gpu_that_is_hidden_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "torch_has_cuda", lambda: True)
    (tmp_path / "gpu").write_text("")
    monkeypatch.setattr(machine, "_GPU_DEVICES", (str(tmp_path / "gpu"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert this_machine().has_cuda
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not this_machine().has_cuda


@pytest.mark.parametrize(
    ("version", "expected"), [("2.13.0", True), ("2.13.0+cu128", True), ("2.13.0+cpu", False)]
)
def test_a_build_of_torch_says_whether_it_can_use_a_gpu(monkeypatch, version, expected):
    monkeypatch.setattr(machine, "installed_version", lambda name: version)
    monkeypatch.setattr(machine.sys, "platform", "linux")
    assert machine.torch_has_cuda() is expected


@pytest.fixture
def cpus(tmp_path, monkeypatch):
    """Eight logical CPUs on four cores, two of them in each package, and no limit."""
    for cpu in range(8):
        folder = tmp_path / "cpus" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(str(cpu % 4 // 2))
        (folder / "core_id").write_text(str(cpu % 2))
    monkeypatch.setattr(machine, "_CPU_TOPOLOGY", tmp_path / "cpus")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_usable_cpus", lambda: set(range(8)))
    (tmp_path / "cgroup" / "slice" / "job").mkdir(parents=True)
    return tmp_path


def test_logical_cpus_of_one_core_count_once(cpus):
    assert num_usable_cores() == 4


def test_only_the_cpus_that_the_process_may_use_count(cpus, monkeypatch):
    monkeypatch.setattr(machine, "_usable_cpus", lambda: {0, 4, 1})
    assert num_usable_cores() == 2


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("junk", 4)]
)
def test_a_control_groups_quota_limits_the_cores(cpus, quota, expected):
    (cpus / "cgroup" / "cpu.max").write_text(quota)
    assert num_usable_cores() == expected


def test_the_quota_of_any_group_above_the_process_counts(cpus):
    (cpus / "own").write_text("1:cpu:/x\n0::/slice/job\n")
    (cpus / "cgroup" / "slice" / "cpu.max").write_text("300000 100000")
    (cpus / "cgroup" / "slice" / "job" / "cpu.max").write_text("max 100000")
    assert num_usable_cores() == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("200000", 2)])
def test_the_quota_of_version_1_limits_the_cores_too(cpus, quota, expected):
    (cpus / "cgroup" / "cpu").mkdir()
    (cpus / "cgroup" / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (cpus / "cgroup" / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert num_usable_cores() == expected


def test_a_system_that_tells_nothing_has_at_least_one_core(cpus, monkeypatch):
    monkeypatch.setattr(machine, "_CPU_TOPOLOGY", cpus / "nowhere")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    assert num_usable_cores() == 1
