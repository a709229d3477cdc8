"""The Dockerfile: what can be checked of its steps without Docker."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    tuple(line.split(maxsplit=1))
    for line in DOCKERFILE.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands():
    """Each command of a RUN step as its words."""
    return [part.split() for name, step in STEPS if name == "RUN" for part in step.split("&&")]


def test_build_targets_are_cuda_and_cpu_with_cpu_as_the_default():
    stages = [step.rpartition(" AS ")[2] for name, step in STEPS if name == "FROM"]
    assert stages == ["base", "cuda", "cpu"]


def test_run_steps_are_system_packages_or_targets_of_make():
    assert {words[0] for words in commands()} == {"apt-get", "rm", "make"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    for words in commands():
        if words[0] == "make":
            subprocess.run(
                ["make", "--dry-run", *words[1:]],
                cwd=REPOSITORY, env=environment, capture_output=True, timeout=60, check=True,
            )  # fmt: skip


def test_extras_of_the_images_exist():
    named = re.findall(r"EXTRAS=(\S+)", " ".join(step for _, step in STEPS))
    extras = {extra for names in named for extra in names.split(",")}
    assert extras == {"gpu"}
    assert extras <= PROJECT["optional-dependencies"].keys()


def test_base_image_has_a_python_in_range_and_the_entry_point_is_installed():
    version = re.search(r"^FROM python:3\.(\d+)", DOCKERFILE, flags=re.MULTILINE)
    assert version is not None
    assert 11 <= int(version[1]) <= 13
    assert ("ENTRYPOINT", '["atrium"]') in STEPS
    assert "atrium" in PROJECT["scripts"]


def test_environments_and_runs_stay_out_of_the_image():
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".venv", "node_modules", "runs/*"} <= set(ignored)
