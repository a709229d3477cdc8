"""What every test runs under: one quiet thread, no network, and, in CI, no skips among the slow tests."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Before torch is imported, for a plain `pytest` too; `make test` sets the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not Path("/dev/nvidiactl").exists():  # Triton's kernels run in its interpreter, which is chosen on import
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell's background jobs ignore it, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as does what `nohup` starts
# What `make test ARGS=...` was given is for pytest, not for the commands of make that tests try.
for variable in ("MAKEFLAGS", "MFLAGS", "ARGS", "TESTS"):
    os.environ.pop(variable, None)
# Runs of tests are copied to no tracker unless a test asks for it.
os.environ["ATRIUM_MIRRORS"] = "off"
os.environ["ATRIUM_NO_LOCAL"] = "1"  # conf/local/default.yaml, if this machine has one

gc.disable()  # until everything is imported: next to nothing of that becomes garbage

collect_ignore = [] if find_spec("triton") else ["train/test_sliced_logprobs.py"]  # see make test-kernels
SKIPS_FAIL = bool(os.environ.get("ATRIUM_NO_SKIPS"))
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


@pytest.fixture(scope="session", autouse=True)
def _composition_without_repeated_work():
    """Spare Hydra half of its work per composition, which changes no result.

    It parses some thirty files each time; here a file is parsed again only once it has changed. And for each
    of them it writes down all choices made so far, which it looks at only where a choice names another.
    """
    if "hydra" not in sys.modules:
        yield
        return
    repository = sys.modules["hydra._internal.config_repository"].ConfigRepository
    defaults_list = sys.modules["hydra._internal.defaults_list"]
    read, choices, kept = repository.load_config, defaults_list._create_interpolation_map, {}

    def load_once(self, config_path):
        roots = tuple(source.path for source in self.sources)
        file = Path(roots[1].removeprefix("file://"), f"{config_path.removesuffix('.yaml')}.yaml")
        stat = file.stat() if file.is_file() else None
        key = (*roots, config_path, stat and (stat.st_mtime_ns, stat.st_size))
        if key not in kept:
            kept[key] = pickle.dumps(read(self, config_path))
        return pickle.loads(kept[key])

    def choices_where_named(overrides, defaults, self_added):
        if any(default.is_interpolation() for default in defaults):
            return choices(overrides, defaults, self_added)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "load_config", load_once)
        patch.setattr(defaults_list, "_create_interpolation_map", choices_where_named)
        yield


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Refuse connections of this process to anything but this machine."""
    connect = socket.socket.connect

    def connect_here(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = str(address[0])
            assert host.startswith(LOOPBACK), f"a test connects to {host}; tests use no network"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


def pytest_collection_finish():
    """Leave what imports and collection have made out of every later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return _failed_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _failed_if_skipped(report)


def _failed_if_skipped(report):
    """With ATRIUM_NO_SKIPS, a skip is a failure; an expected failure stays what it is.

    Benchmark problems may lack (see `benchmark_files`): the project does not carry them.
    """
    if not SKIPS_FAIL or not report.skipped or hasattr(report, "wasxfail"):
        return report
    if not report.longrepr[2].endswith("the benchmark files are not here"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and ATRIUM_NO_SKIPS is set: {report.longrepr[2]}"
    return report
