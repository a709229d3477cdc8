"""A run that has nothing to learn from says so: while it trains, in its last line, and ever after."""

from __future__ import annotations

import json

from atrium.cli import main
from atrium.runs.find import find_run

NUM_STEPS = 12
SETTINGS = (
    "debug=tiny_steps",
    "reward=correctness",  # of a model that knows no arithmetic, and has no room for an answer
    "rollout.max_new_tokens=1",
    f"num_steps={NUM_STEPS}",
    "evaluation.every_num_steps=12",
    "checkpoint.every_num_steps=12",
    "tracking.figures=false",
)


def test_a_run_that_never_gets_a_signal_does_not_end_without_a_word(tmp_path, capsys):
    assert main(["train", *SETTINGS, f"runs_dir={tmp_path}"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    notes = [line for line in printed if line.startswith("note: ")]
    assert any(line.startswith("note: no signal, steps 1 to 10: ") for line in notes), notes
    assert any(line.startswith("note: truncation, steps 1 to 10: ") for line in notes), notes
    last = [line.removeprefix("note: ") for line in printed[-2:]]
    said = [f"{rule}, steps 1 to {NUM_STEPS}: " for rule in ("no signal", "truncation")]
    assert [line[: len(start)] for line, start in zip(last, said, strict=True)] == said
    assert "mean reward 0, 0.0 % correct" in last[0]
    folder = find_run(tmp_path, "last")
    summary = json.loads(folder.summary_file.read_text())
    assert [found["text"] for found in summary["findings"]] == last
    assert main(["show", folder.path.name, "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line in last] == last
