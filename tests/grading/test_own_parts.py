"""The page on rewards and verifiers of one's own: its code runs from files outside of the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"

GRADED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import my_parts
from atrium.config.compose import compose
from atrium.grading.pool import GraderPool
from atrium.grading.rewards import GradedGroup
from atrium.records import Completion, FinishReason, Problem

config = compose([f"reward={sys.argv[1]}/shortest_first.yaml", f"grader={sys.argv[1]}/last_line.yaml"])
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
print(json.dumps([[v.kind.value for v in verdicts], config.reward(group), written.kind.value]))
"""
TRAINED = """
import sys
sys.path.insert(0, sys.argv[1])
import my_parts
from atrium.cli.app import main
sys.exit(main(["train", "debug=tiny_steps", f"reward={sys.argv[1]}/shortest_first.yaml", *sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    blocks = re.findall(r"```(?:python|yaml)\n# (\w+\.\w+)[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == [
        "my_parts.py",
        "shortest_first.yaml",
        "my_parts.py",
        "last_line.yaml",
    ]
    for name, text in blocks:
        with (folder / name).open("a") as file:
            file.write(text)
    return folder


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "ATRIUM_MIRRORS": "off"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_verifier_with_its_own_extraction_grades_in_killable_processes(parts: Path):
    kinds, rewards, written = json.loads(run(GRADED, str(parts)).splitlines()[-1])
    assert kinds == ["correct", "correct", "incorrect", "no_answer", "crashed"]
    assert rewards == [1.0, 0.8, 0.0, 0.0, 0.0]
    assert written == "correct"


def test_a_run_trains_on_a_reward_that_sees_its_group(parts: Path, tmp_path: Path):
    run(TRAINED, str(parts), f"runs_dir={tmp_path}", "experiment_name=own")
    (folder,) = (tmp_path / "own").iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert config["reward"] == {"kind": "shortest_first", "weight": 0.2}
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
