from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from atrium.runs.provenance import (
    MAX_DIFF_BYTES,
    DataProvenance,
    code_version,
    collect_provenance,
    hardware,
    memory_limit_mb,
    package_versions,
)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit, without the user's own git settings."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "code.py").write_text("x = 1\n")
    author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


@needs_git
def test_a_clean_checkout_is_its_commit(checkout):
    version = code_version(checkout, {})
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert version == {"commit": head.stdout.strip(), "diff": "", "is_dirty": False, "untracked": []}


@needs_git
def test_changes_are_recorded_without_secrets_and_untracked_files_by_name(checkout):
    (checkout / "code.py").write_text("x = 2\nAPI_KEY = 'abcdef-012345'\ny = 'opensesame-42'\n")
    (checkout / "new.py").write_text("z = 3\n")
    version = code_version(checkout, {"HF_TOKEN": "opensesame-42"})
    assert version["is_dirty"] is True
    assert version["untracked"] == ["new.py"]
    assert "+x = 2" in version["diff"]
    assert "012345" not in version["diff"]
    assert "opensesame" not in version["diff"]


@needs_git
def test_a_large_diff_is_cut_and_says_so(checkout):
    (checkout / "code.py").write_text("x = 'ä'\n" * (MAX_DIFF_BYTES // 4))
    diff = code_version(checkout, {})["diff"]
    assert len(diff.encode()) < MAX_DIFF_BYTES + 100
    assert "[cut: " in diff[-100:]


@needs_git
def test_a_diff_runs_no_program_that_the_checkout_names(checkout, tmp_path):
    mark = tmp_path / "ran"
    (checkout / ".gitattributes").write_text("*.py diff=evil\n")
    for key in ("diff.external", "diff.evil.command", "diff.evil.textconv"):
        subprocess.run(["git", "-C", str(checkout), "config", key, f"touch {mark} #"], check=True)
    (checkout / "code.py").write_text("x = 2\n")
    assert "+x = 2" in code_version(checkout, {})["diff"]
    assert not mark.exists()


def test_outside_a_repository_nothing_is_known_and_nothing_fails(tmp_path):
    unknown = {"commit": None, "diff": None, "is_dirty": None, "untracked": []}
    assert code_version(tmp_path, {}) == unknown
    assert code_version(tmp_path / "absent", {}) == unknown
    assert code_version(None, {}) == unknown


def test_versions_of_all_packages_are_recorded():
    versions = package_versions()
    for name in ("numpy", "torch", "transformers", "pyarrow"):
        assert versions[name] == metadata.version(name)


def test_the_hardware_is_described():
    found = hardware()
    assert found["cpu"]
    assert 1 <= found["num_usable_cores"] <= found["num_logical_cores"]
    assert found["memory_mb"] > 100
    assert memory_limit_mb() is None or memory_limit_mb() > 0
    assert isinstance(found["gpus"], list)


def test_no_secret_of_the_environment_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "opensesame-42")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(
        sys, "argv", ["atrium", "train", "x=opensesame-42", "--token", "abcdef0123456789abcdef"]
    )
    data = DataProvenance(
        dataset_content_hash="sha256:1", prompt_template_hash="2", grader_version="math-verify 0.9"
    )
    recorded = collect_provenance(
        data, num_threads=2, project_dir=tmp_path, extra={"engine": {"name": "transformers"}}
    )
    text = json.dumps(recorded)
    assert "opensesame" not in text
    assert "abcdef0123456789" not in text
    assert recorded["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert recorded["num_threads"] == 2
    assert recorded["engine"] == {"name": "transformers"}
    assert recorded["data"] == {
        "dataset_revision": None,
        "dataset_content_hash": "sha256:1",
        "benchmark_content_hashes": None,
        "prompt_template_hash": "2",
        "grader_version": "math-verify 0.9",
        "prompt_hashes": None,
        "model_source": None,
    }


def test_all_of_tracking_loads_without_torch():
    code = (
        "import importlib, pkgutil, sys, atrium.runs as t\n"
        "for module in pkgutil.iter_modules(t.__path__):\n"
        "    importlib.import_module(f'atrium.runs.{module.name}')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@needs_git
def test_changes_of_files_that_a_command_writes_are_ignored(checkout):
    (checkout / "written").mkdir()
    (checkout / "written" / "result.json").write_text("{}")
    assert code_version(checkout, {})["is_dirty"]
    assert not code_version(checkout, {}, but=[checkout / "written"])["is_dirty"]
    (checkout / "other.py").write_text("x = 1\n")
    assert code_version(checkout, {}, but=[checkout / "written"])["untracked"] == ["other.py"]


@needs_git
def test_whether_code_has_changes_is_unknown_if_git_cannot_compare(checkout):
    (checkout / ".git" / "index").write_bytes(b"damaged")
    version = code_version(checkout, {})
    assert (version["diff"], version["is_dirty"], version["untracked"]) == (None, None, [])
