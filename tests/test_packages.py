"""What the package imports and declares, and what its wheel does outside the checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "platform" / "atrium"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OUTSIDE = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "MAKE", "MFLAGS", "COVERAGE", "VIRTUAL_ENV"))
}


def declared(lines):
    return {canonicalize_name(Requirement(line).name) for line in lines}


BASE = declared(PROJECT["dependencies"])
EXTRAS = {name: declared(lines) for name, lines in PROJECT["optional-dependencies"].items()}
PEERS = {"trl": "peers/trl_trainer.py", "verl": "peers/verl_losses.py", "prime_rl": "peers/prime_rl.py"}
"""The programs that import these modules of Atrium; they are there before Atrium is."""
OPTIONAL = {
    "bitsandbytes": "optimizers",
    "optimi": "optimizers",
    "pynvml": "gpu",
    "reasoning_gym": "tasks",
    "submitit": "cluster",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "triton": "kernels",
    "vllm": "gpu",
}
"""Modules beyond the base and the extra `train`, with the extra that each comes with."""


def imports(path):
    """The top-level names of the packages that a file imports, with the line of each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [part.value for part in node.args[:1] if isinstance(part, ast.Constant)]
        for name in names:
            top = name.partition(".")[0]
            if top != "atrium" and top not in sys.stdlib_module_names:
                yield top, node.lineno


@cache
def distributions():
    """The names of the distributions that have each package."""
    found = metadata.packages_distributions() | {
        "vllm": ["vllm"],
        "pynvml": ["nvidia-ml-py"],
        "triton": ["triton"],
    }
    return {name: {canonicalize_name(one) for one in names} for name, names in found.items()}


@cache
def all_imports():
    """Every import of a package in the source: its file, its line and the package's name."""
    return [
        (path.relative_to(SOURCE).as_posix(), line, name)
        for path in sorted(SOURCE.rglob("*.py"))
        for name, line in imports(path)
    ]


def test_every_imported_package_is_declared_in_the_base_or_its_extra():
    undeclared = []
    for path, line, name in all_imports():
        if PEERS.get(name) == path:
            continue
        allowed = EXTRAS[OPTIONAL[name]] if name in OPTIONAL else BASE | EXTRAS["train"]
        if not allowed & distributions().get(name, set()):
            undeclared.append(f"{path}:{line} imports {name}")
    assert not undeclared
    assert len(all_imports()) > 300


def test_every_declared_package_of_the_base_and_train_is_imported():
    imported = set().union(*(distributions().get(name, set()) for _, _, name in all_imports()))
    assert {"torch", "numpy", "pydantic", "scipy", "pyyaml"} == BASE
    assert BASE | EXTRAS["train"] <= imported
    assert not BASE & EXTRAS["train"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel file that a checkout builds."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY)
    (path,) = folder.glob("atrium_rl-*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A folder outside the checkout with an environment that has the wheel and its base alone."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    link(PROJECT["dependencies"], folder)
    pip(folder / "venv" / "bin" / "python", "install", "--no-compile", wheel)
    return folder


def link(lines, folder):
    """Give the environment this one's packages that requirements lead to: pip unpacks them for minutes."""
    (place,) = (folder / "venv" / "lib").glob("python*/site-packages")
    waiting, seen = [(Requirement(line), "") for line in lines], set()
    while waiting:
        wanted, extra = waiting.pop()
        waiting += [(wanted, one) for one in wanted.extras if not extra]
        if (key := (canonicalize_name(wanted.name), extra)) in seen:
            continue
        seen.add(key)
        try:
            found = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # pip installs what lacks
        needs = map(Requirement, found.requires or ())
        waiting += [(one, "") for one in needs if one.marker is None or one.marker.evaluate({"extra": extra})]
        for file in [] if extra else found.files or ():
            source, target = Path(found.locate_file(file)), place / file
            if ".." not in file.parts and source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(source, target)


def _link(source, target):
    try:
        os.link(source, target)
    except OSError:  # the folder lies on another disk
        shutil.copy2(source, target)


def pip(python, *arguments):
    done = subprocess.run(
        [python, "-m", "pip", *arguments], env=OUTSIDE, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]


def run(folder, *words):
    """Run a program of the environment, in a folder outside the checkout."""
    program, *arguments = words
    return subprocess.run(
        [folder / "venv" / "bin" / program, *arguments],
        cwd=folder,
        env=OUTSIDE,
        capture_output=True,
        text=True,
        timeout=300,
    )


LOSS = """
import atrium, torch
method = atrium.load_method("atr", "divergence.delta=0.02")
logprob_BT = torch.zeros(2, 3, requires_grad=True)
output = method.loss(logprob_BT, torch.ones(2, 3), advantage_BT=torch.tensor([1.0, 2.0]))
output.loss.backward()
print(atrium.__file__, method.words["window [l, u]"], logprob_BT.grad.tolist()[1])
"""
EVERY_COMMAND = """
from atrium.cli.app import COMMANDS, main
own_help = {"sweep": ["delta"], "claim": ["reproduce", "atr", "--scale=laptop"]}
for name in COMMANDS:
    if name not in ("audit", "doctor", "windows"):  # the help of these needs no more than the base
        assert main([name, *own_help.get(name, ["--help"])]) == 2, name
"""


@pytest.mark.full
def test_wheel_carries_the_configuration_sweeps_and_pages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    wanted = {
        f"atrium/{path.relative_to(REPOSITORY)}"
        for folder in ("conf", "sweeps")
        for path in (REPOSITORY / folder).rglob("*.*")
        if path.parent.name != "local"  # a machine's own settings
    }
    wanted |= {
        f"atrium/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in carried if ".dist-info/" not in name} == wanted


@pytest.mark.full
def test_base_of_the_wheel_computes_losses_and_names_the_extra_elsewhere(environment):
    done = run(environment, "python", "-c", LOSS)
    assert done.returncode == 0, done.stderr
    place, window, gradient = re.fullmatch(r"(\S+) (\[.*?\]) (\[.*?\])\n", done.stdout).groups()
    assert Path(place).is_relative_to(environment)
    assert window == "[0.8131, 1.2135]"
    assert [float(value) for value in gradient[1:-1].split(",")] == pytest.approx([-1 / 3] * 3)

    done = run(environment, "python", "-c", EVERY_COMMAND)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) > 15
    for line in lines:
        assert re.match(r"error: atrium [\w-]+ needs the package \w+ and the rest of the extra `train`", line)
    assert run(environment, "atrium", "--version").stdout.startswith("atrium ")
    examined = run(environment, "atrium", "doctor")
    assert examined.returncode == 1
    assert "transformers is not installed" in examined.stdout


@pytest.mark.full
def test_wheel_with_the_extra_trains_outside_the_checkout(wheel, environment):
    link(PROJECT["optional-dependencies"]["train"], environment)
    pip(environment / "venv" / "bin" / "python", "install", "--no-compile", f"{wheel}[train]")
    done = run(environment, "atrium", "train", "debug=tiny_steps")
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    assert list((environment / "runs").glob("*/*/summary.json"))
    examined = run(environment, "atrium", "doctor")
    assert examined.returncode == 0, examined.stdout
    listed = run(environment, "atrium", "claim", "list")
    assert "rpg/forms" in listed.stdout
