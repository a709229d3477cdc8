"""Where two runs differ, as `atrium diff` lists it."""

from __future__ import annotations

import json

from atrium.cli.app import main
from atrium.compare.run_differences import ABSENT, run_differences

COUNTS = {("exam", 4): [1, 2]}


def with_provenance(run, **code):
    run.provenance_file.write_text(json.dumps({"code": code, "packages": {"torch": code["commit"]}}))
    return run


def test_settings_code_and_environment_are_told_apart(make_run):
    one = with_provenance(make_run("atr", 0, COUNTS), commit="aaa", diff="-old\n+new\n")
    other = with_provenance(make_run("grpo", 0, COUNTS), commit="bbb", diff="-old\n+newer\n")
    found = run_differences(one, other)
    assert found.settings["algorithm.name"] == ("atr", "grpo")
    assert "seed" not in found.settings
    assert found.code == {"code.commit": ("aaa", "bbb")}
    assert found.environment == {"packages.torch": ("aaa", "bbb")}
    assert found.code_diff[-2:] == ("-+new", "++newer")


def test_the_command_says_where_runs_differ_and_when_they_do_not(make_run, capsys, tmp_path):
    one, other = (make_run(name, 0, COUNTS) for name in ("atr", "grpo"))
    runs_dir = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["diff", one.path.name, other.path.name, *runs_dir]) == 0
    assert "divergence.kind" in capsys.readouterr().out
    assert main(["diff", one.path.name, one.path.name, *runs_dir]) == 0
    assert capsys.readouterr().out == "nothing that was recorded differs\n"
    assert main(["diff", one.path.name, other.path.name, "--json", *runs_dir]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["algorithm.name"] == ["atr", "grpo"]


def test_a_damaged_folder_is_named_and_the_rest_is_compared(make_run):
    one, other = (make_run("atr", seed, COUNTS) for seed in (0, 1))
    other.provenance_file.write_text("[]")
    found = run_differences(one, other)
    assert found.settings["seed"] == ("0", "1")
    assert found.environment["packages.torch"] == ("2.11", ABSENT)
    assert "provenance.json does not hold an object" in found.problems[0]
