"""The page on parts of one's own: its code runs from files outside of the package, as a plugin."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atrium.base.records import Completion, Problem, Verdict
from atrium.grading.rewards import GradedGroup

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
FILES = ["triangular", "exponential_gate", "root_length_mean", "shortest_first", "last_line"]

GRADED = """
import json, sys
import numpy as np
from atrium.base import plugins
plugins.load(["my_parts.py"])
from atrium.config.compose import compose
from atrium.grading.pool import GraderPool
from atrium.grading.rewards import GradedGroup
from atrium.base.records import Completion, FinishReason, Problem

config = compose(["reward=./shortest_first.yaml", "grader=./last_line.yaml", "grader.timeout_s=60.0"])
texts = ["Well.\\nAnswer: 7", "Answer: 7.0", "Answer: 8", "7", "Answer: seven"]
with GraderPool(config.grader) as pool:
    verdicts = [pool.grade(text, "7") for text in texts]
    written = pool.grade(config.grader.write(config.grader.restate("7")), "7")
group = GradedGroup(
    problem=Problem(problem_id="p", question="3+4=", answer="7"),
    completions=tuple(
        Completion(
            token_ids=np.zeros(n, np.int32),
            logprobs=np.zeros(n, np.float32),
            text=text,
            finish_reason=FinishReason.STOP,
            weight_version=0,
        )
        for n, text in zip((4, 8, 3, 2, 2), texts)
    ),
    verdicts=tuple(verdicts),
    step=1,
    seed=0,
    max_new_tokens=64,
)
with open("my_parts.py", "a") as file:
    file.write("# changed")
with GraderPool(config.grader) as pool:
    changed = pool.grade(texts[0], "7")
kinds = [verdict.kind.value for verdict in verdicts]
print(json.dumps([kinds, config.reward(group), written.kind.value, changed.reason]))
"""
COMPUTED = """
import json
from atrium.base import plugins
plugins.load(["my_parts.py"])
from atrium.config.compose import compose
from atrium.method.terms import SurrogateInputs
from atrium.method.regions import Region
import torch

run = compose(["algorithm=./exponential_gate.yaml"])
ratio = torch.tensor([[0.5, 1.0, 1.5]], dtype=torch.float64)
x = SurrogateInputs(
    gate_BT=ratio, weight_BT=ratio, log_weight_BT=ratio.log(), logprob_BT=ratio.log(), clipped_ratio_BT=ratio,
    advantage_BT=torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64),
    rewarded_BT=torch.ones(1, 3, dtype=torch.bool),
    region=Region(lower=0.0, upper=float("inf"), feasible_BT=torch.ones(1, 3, dtype=torch.bool)),
)
surrogate = run.algorithm.surrogate
closed, (slope, value) = surrogate.terms(x), surrogate.differentiated(x)
window = compose(["divergence=./triangular.yaml"]).divergence.window()
difference = (closed.value_BT - value).abs().max().item()
print(json.dumps([closed.coefficient_BT.tolist(), slope.tolist(), difference, window.lower, window.upper]))

from atrium.method.reductions import count_totals

reduction = compose(["algorithm=./root_length_mean.yaml"]).algorithm.reduction
num_tokens, group = torch.tensor([4, 9]), torch.tensor([0, 0])
print(json.dumps(reduction.row_factor(num_tokens, group, count_totals(num_tokens, group)).tolist()))
"""
CHANGED = "\n# The same with another digest.\n"


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    blocks = re.findall(r"```(?:python|yaml)\n# (\w+\.\w+)[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks if name != "my_parts.py"] == [f"{name}.yaml" for name in FILES]
    assert len(blocks) == 2 * len(FILES) + 1, "a class and a file each, and functions without a file"
    for name, text in blocks:
        with (folder / name).open("a") as file:
            file.write(text)
    return folder


@pytest.fixture
def own(parts: Path, tmp_path: Path) -> Path:
    """The files of the page, which the test may change."""
    return Path(shutil.copytree(parts, tmp_path / "own"))


def python(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ATRIUM_MIRRORS": "off"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, env=environment, cwd=folder, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def atrium(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "atrium", *arguments, code=code)


@pytest.mark.full
def test_a_verifier_with_its_own_extraction_grades_in_killable_processes(own: Path):
    kinds, rewards, written, changed = json.loads(python(own, "-c", GRADED).stdout.splitlines()[-1])
    assert kinds == ["correct", "correct", "incorrect", "no_answer", "crashed"]
    assert rewards == [1.0, 0.8, 0.0, 0.0, 0.0]
    assert written == "correct"
    assert "my_parts.py changed" in changed


@pytest.mark.full
def test_a_divergence_is_its_window_and_a_surrogate_or_reduction_its_formula(parts: Path):
    of_tokens, of_rows = python(parts, "-c", COMPUTED).stdout.splitlines()
    assert json.loads(of_rows) == pytest.approx([1 / (2 * 2), 1 / (3 * 2)], rel=1e-15)
    closed, slope, difference, lower, upper = json.loads(of_tokens)
    assert slope[0] == pytest.approx(closed[0], rel=1e-12)
    assert closed[0][1] == 2.0  # on policy it is w A
    assert difference == 0.0
    for ratio in (lower, upper):
        assert (ratio - 1.0) ** 2 / (ratio + 1.0) == pytest.approx(0.02, rel=1e-10)
    assert lower < 1.0 < upper


@pytest.mark.full
def test_a_run_trains_with_parts_of_ones_own_and_asks_for_them_again(own: Path):
    typed = ["debug=tiny_steps", "algorithm=./exponential_gate.yaml", "reward=./shortest_first.yaml"]
    atrium(own, "train", "--plugin", "my_parts.py", *typed, "checkpoint.every_num_steps=1")
    (folder,) = (own / "runs").glob("*/*-exponential_gate-*")
    config = json.loads((folder / "config.json").read_text())
    assert config["reward"] == {"kind": "shortest_first", "weight": 0.2}
    assert config["algorithm"]["surrogate"] == {"kind": "exponential_gate", "tau": 0.5}
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    (copy,) = (folder / "plugins").iterdir()
    source = own / "my_parts.py"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert json.loads((folder / "provenance.json").read_text())["plugins"] == [
        {"name": "my_parts.py", "version": None, "sha256": digest}
    ]
    assert copy.read_bytes() == source.read_bytes()

    refused = atrium(own, "train", "--resume", "last", code=2).stderr
    assert refused.count("\n") == 1
    assert "plugin my_parts.py" in refused
    assert digest in refused
    assert "--plugin my_parts.py" in refused
    assert "cannot be executed" in atrium(own, "rerun", "last", "--plugin", str(copy), code=2).stderr

    source.write_text(source.read_text() + CHANGED)
    steps = f"num_steps={config['num_steps'] + 1}"
    said = atrium(own, "train", "--resume", "last", steps, "--plugin=my_parts.py").stderr
    assert "differs from the recorded one" in said
    assert digest[:12] in said
    assert "differs from the recorded one" in (folder / "log.txt").read_text()
    assert len(list((folder / "plugins").iterdir())) == 2


def test_an_installed_package_is_loaded_by_every_command_and_a_failing_one_is_one_line(own: Path):
    package = own / "site" / "my_package-1.2.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (package / "entry_points.txt").write_text("[atrium.base.plugins]\nmy_parts = my_package\n")
    (own / "site" / "my_package.py").write_text((own / "my_parts.py").read_text())
    program = (
        "import sys; sys.path.insert(0, 'site'); from atrium.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    shown = python(own, "-c", program, "config", "divergence=./triangular.yaml").stdout
    assert json.loads(shown)["divergence"] == {"kind": "triangular", "delta": 0.02}
    twice = python(own, "-c", program, "config", "--plugin", "my_parts.py", code=2).stderr
    assert re.fullmatch(
        r"error: --plugin my_parts.py, line \d+: TypeError: the kind triangular is declared by both .*\n",
        twice,
    )


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(2400)
def test_processes_that_a_command_starts_have_its_plugins(own: Path):
    plugin = ["--plugin", "my_parts.py"]
    parts = ["algorithm=./exponential_gate.yaml", "debug=tiny_steps", "tracking.figures=false"]
    atrium(
        own,
        "train",
        *plugin,
        *parts,
        "grader=./last_line.yaml",
        "grader.timeout_s=60.0",
        "compute.num_processes=2",
        "num_steps=2",
    )
    (launched,) = (own / "runs").glob("*/*-exponential_gate-*")
    assert json.loads((launched / "summary.json").read_text())["status"] == "finished"
    evaluated = ["evaluate", "--run", str(launched), "evaluation.num_samples=1"]
    assert "plugin my_parts.py" in atrium(own, *evaluated, code=2).stderr
    atrium(own, *evaluated, *plugin)
    job = ["compute=slurm", "compute.slurm.executor=local", "compute.device=cpu", "num_steps=2"]
    atrium(own, "train", *plugin, *parts, *job, "experiment_name=job")
    (queued,) = (own / "runs").glob("job/*-exponential_gate-*")
    assert json.loads((queued / "summary.json").read_text())["status"] == "finished"

    lines = [*parts, "experiment=stress", "num_steps=2"]
    (own / "gate.yaml").write_text(
        "question: Does a worker know the parts?\nbase: [" + ", ".join(map(json.dumps, lines)) + "]\n"
        "space:\n  algorithm.surrogate.tau: {choices: [0.3, 0.6]}\nseeds: [0]\nsampler: {kind: grid}\n"
        "trials: 2\nobjectives: [{metric: entropy}]\n"
    )
    atrium(own, "sweep", "./gate.yaml", *plugin)
    states = json.loads((own / "runs" / "sweeps" / "gate" / "state.json").read_text())
    assert "complete" in json.dumps(states).lower()
    (own / "my_parts.py").write_text((own / "my_parts.py").read_text() + CHANGED)
    refused = atrium(own, "sweep", "worker", "gate", *plugin, code=2).stderr
    assert "must resume with the code that it started with" in refused


@pytest.mark.parametrize("record", [GradedGroup, Problem, Completion, Verdict])
def test_page_lists_every_field_of_the_records_that_a_reward_gets(record):
    rows = re.findall(r"^\|(.*?)\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    listed, name = {}, ""
    for first, field in rows:
        name = first.strip(" `") or name
        listed.setdefault(name, []).append(field)
    assert listed[record.__name__] == [field.name for field in dataclasses.fields(record)]
