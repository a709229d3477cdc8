"""Where two runs differ, as `atrium diff` lists it."""

from __future__ import annotations

import json

from atrium.cli.app import main
from atrium.compare.run_differences import ABSENT, differences_document, run_differences

COUNTS = {("exam", 4): [1, 2]}


def with_provenance(run, **code):
    run.provenance_file.write_text(json.dumps({"code": code, "packages": {"torch": code["commit"]}}))
    return run


def test_differences_are_split_into_settings_code_and_environment(make_run):
    one = with_provenance(make_run("atr", 0, COUNTS), commit="aaa", diff="-old\n+new\n")
    other = with_provenance(make_run("grpo", 0, COUNTS), commit="bbb", diff="-old\n+newer\n")
    found = run_differences(one, other)
    assert found.settings["algorithm.name"] == ("atr", "grpo")
    assert "seed" not in found.settings
    assert found.code == {"code.commit": ("aaa", "bbb")}
    assert found.environment == {"packages.torch": ("aaa", "bbb")}
    assert found.code_diff[-2:] == ("-+new", "++newer")


def test_the_command_prints_differences_or_that_there_are_none(make_run, capsys, tmp_path):
    one, other = (make_run(name, 0, COUNTS) for name in ("atr", "grpo"))
    runs_dir = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["diff", one.path.name, other.path.name, *runs_dir]) == 0
    assert "divergence.kind" in capsys.readouterr().out
    assert main(["diff", one.path.name, one.path.name, *runs_dir]) == 0
    assert capsys.readouterr().out == "no recorded value differs\n"
    assert main(["diff", one.path.name, other.path.name, "--json", *runs_dir]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["algorithm.name"] == ["atr", "grpo"]


def test_a_damaged_folder_is_named_and_the_rest_is_compared(make_run):
    one, other = (make_run("atr", seed, COUNTS) for seed in (0, 1))
    other.provenance_file.write_text("[]")
    found = run_differences(one, other)
    assert found.settings["seed"] == ("0", "1")
    assert found.environment["packages.torch"] == ("2.11", ABSENT)
    assert "provenance.json is not a JSON object" in found.problems[0]


def test_several_runs_are_compared_with_the_first_in_code_and_name_their_commits(make_run):
    diffs = ["-old\n+new\n", "-old\n+newer\n", "-old\n+new\n"]
    runs = [
        with_provenance(make_run("atr", seed, COUNTS), commit="abc"[seed] * 40, diff=diff)
        for seed, diff in enumerate(diffs)
    ]
    found = run_differences(*runs)
    assert found.settings["seed"] == ("0", "1", "2")
    assert [line for line in found.code_diff if line.startswith("+++")] == [f"+++ {runs[1].name}"]
    document = differences_document(found, [run.name for run in runs], num_lines=None)
    assert [one.text for one in document.sections[0].sentences] == [
        "git diff aaaaaaaaaaaa bbbbbbbbbbbb shows what the commits change",
        "git diff aaaaaaaaaaaa cccccccccccc shows what the commits change",
    ]
