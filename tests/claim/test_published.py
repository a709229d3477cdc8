"""`atrium audit`: tables read or refused in one line, and what is said of them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from atrium.claim.published import read_published
from atrium.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "audit.md"
HEAD = "method,benchmark,problems,samples,score"
WHOLE = f"""{HEAD},seeds,evaluations,seed_sd
grpo,math,3000,4,50.0,3,1,0.4
atr,math,3000,4,70.0,3,1,0.4
"""


@pytest.fixture
def audit(tmp_path, capsys):
    """A function that audits a table given as text: the exit code, the output, the error."""

    def run(text, *argv):
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        code = main(["audit", str(path), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err.replace(f"{path}", "table.csv")

    return run


def test_the_page_shows_what_its_commands_print(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    blocks = re.findall(r"^```console\n\$ atrium ([^\n]*)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 2
    for command, shown in blocks:
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out
        assert all(part in printed for part in shown.split("...\n"))


def test_a_table_that_states_everything_establishes_a_large_difference(audit):
    code, out, _ = audit(WHOLE)
    assert code == 0
    assert "atr against grpo on math: +20.0 points. The table establishes that atr is better than grpo" in out
    assert "not stated" not in out


def test_what_is_not_stated_is_named_and_no_number_of_seeds_is_given_without_a_spread(audit):
    _, out, _ = audit(f"{HEAD}\ngrpo,aime,30,16,40\natr,aime,30,16,45\n")
    assert "number of evaluations not stated: all methods" in out
    assert "number of seeds not stated (counted as one): all methods" in out
    assert "The number of seeds is unknown, as is their standard deviation." in out
    assert "seeds, these problems" not in out
    assert "Not established that atr is better than grpo: the number of evaluations is not stated; " in out
    _, assumed, _ = audit(f"{HEAD}\ngrpo,aime,30,16,40\natr,aime,30,16,45\n", "--seed-sd", "1")
    assert "seeds, these problems" in assumed
    assert "note: assumed where not stated: a standard deviation over seeds of 1.0 points" in assumed


def test_the_best_of_several_evaluations_is_a_choice_on_the_test_set(audit):
    table = f"{HEAD},seeds,evaluations\ngrpo,aime,30,16,40,1,1\natr,aime,30,16,45,1,20\n"
    _, out, _ = audit(table)
    assert "best of several evaluations, chosen on the benchmark itself: atr" in out
    assert "one seed: all methods" in out
    row = next(line for line in out.splitlines() if line.startswith("atr ") and "[0.0, +" in line)
    assert re.search(r"\[0\.0, \+4\.\d\]", row)


def test_benchmarks_are_averaged_and_a_chosen_baseline_comes_last_in_no_pair(audit):
    table = f"{HEAD}\na,x,30,4,50\na,y,30,4,30\nb,x,30,4,40\nb,y,30,4,20\nb,z,30,4,20\n"
    _, out, _ = audit(table, "--baseline", "b", "--effect", "5")
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith("a against b")] == [
        f"a against b on {name}" for name in ("x", "y", "macro average")
    ]
    assert re.search(r"^a +macro average +5\.0 ", out, re.MULTILINE)


def test_an_impossible_score_is_reported(audit):
    _, out, _ = audit(f"{HEAD},seeds\na,x,30,1,51.0,1\nb,x,30,1,50.0,1\n")
    assert "a on x: no number of correct answers out of 30 gives this score" in out
    assert "b on x: no count" not in out


def test_fractions_and_percent_signs_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD},seed_sd\na,x,30,4,0.5,0.01\nb,x,30,4,1.0,\n\n")
    first, second = read_published(path, seed_sd=0.02)
    assert (first.stated.score, first.stated.seed_sd, first.step) == (0.5, 0.01, 0.1)
    assert (second.stated.score, second.stated.seed_sd) == (1.0, 0.02)
    path.write_text(f"{HEAD}\na,x,30,4,0.5%\nb,x,30,4,12.25\n")
    first, second = read_published(path)
    assert (first.stated.score, second.stated.score, second.step) == (0.005, 0.1225, 0.0001)


def test_markdown_is_printed_or_written(audit, tmp_path):
    _, out, _ = audit(WHOLE, "--markdown")
    assert out.startswith("## What table.csv cannot establish\n")
    assert "| atr | math | +20.0 |" in out
    code, said, _ = audit(WHOLE, "--markdown", "--out", str(tmp_path / "audit.md"))
    assert (code, (tmp_path / "audit.md").read_text("utf-8")) == (0, out)
    assert said.startswith("wrote ")
    code, _, error = audit(WHOLE, "--out", "x")
    assert (code, error.count("\n")) == (2, 1)


def test_one_method_alone_is_compared_with_nothing(audit):
    code, out, _ = audit(f"{HEAD}\na,x,30,4,50\n")
    assert code == 0
    assert "no two methods share a benchmark: nothing is compared" in out
    assert audit(f"{HEAD}\na,x,30,4,50\nb,x,30,4,50\n")[0] == 0


@pytest.mark.parametrize(
    ("text", "argv", "said"),
    [
        (
            "",
            [],
            "column method is missing; the required columns are method, benchmark, problems, samples, score",
        ),
        ("method,benchmark,problems,samples\na,x,30,4\n", [], "column score is missing"),
        (f"{HEAD}\n", [], "table.csv contains no rows"),
        (f"{HEAD},seed\na,x,30,4,50,3\n", [], "unknown column seed; did you mean seeds?"),
        (f"{HEAD},score\na,x,30,4,50,50\n", [], "column score appears twice"),
        (f"{HEAD}\na,x,30,4,100.1\n", [], "line 2: score must be between 0 and 100 percent, got 100.1"),
        (f"{HEAD}\na,x,30,4,-1\n", [], "line 2: score must be between 0 and 100 percent, got -1"),
        (f"{HEAD}\na,x,30,0,50\n", [], "line 2: samples must be a whole number from 1 to 100,000, got 0"),
        (f"{HEAD}\na,x,30.5,4,50\n", [], "line 2: problems must be a whole number from 1 to 1,000,000"),
        (f"{HEAD},evaluations\na,x,30,4,50,0\n", [], "evaluations must be a whole number from 1"),
        (f"{HEAD},seeds\na,x,30,4,50,many\n", [], "seeds must be a whole number from 1 to 10,000, got many"),
        (f"{HEAD}\na,x,30,4,high\n", [], "line 2: score must be a number, got high"),
        (f"{HEAD}\na,x,30,4,nan\n", [], "line 2: score must be a number, got nan"),
        (f"{HEAD}\na,x,30,4,\n", [], 'line 2: score must be a number, got ""'),
        (f"{HEAD},seed_sd\na,x,30,4,50,0\n", [], "seed_sd must be greater than 0 and at most 71 points"),
        (
            f"{HEAD}\na,x,30,4,0.31\nb,x,30,4,28.2\n",
            [],
            "percentages or all fractions, got 28.2 and 0.31",
        ),
        (f"{HEAD}\na,x,30,4,31\na,x,30,4,28\n", [], "line 3: a on x appears twice"),
        (
            f"{HEAD}\na,x,30,4,31\nb,x,60,4,28\n",
            [],
            "line 3: x must have the same number of problems in all rows, got 60 here and 30 above",
        ),
        (f"{HEAD}\na,x,30,4\n", [], "line 2: expected 5 cells, got 4"),
        (f"{HEAD}\n,x,30,4,50\n", [], "line 2: method and benchmark must not be empty"),
        (b"\xff\xfe\x00", [], "cannot be read as CSV"),
        (f'{HEAD}\n"a,x,30\n', [], "cannot be read as CSV"),
        (WHOLE, ["--baseline", "grpp"], "--baseline grpp: unknown method; did you mean grpo?"),
        (WHOLE, ["--effect", "0"], "--effect"),
        (WHOLE, ["--evaluations", "0"], "--evaluations: expected 1 to 1000000, got 0"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(audit, text, argv, said):
    code, out, error = audit(text, *argv)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error


def test_a_missing_table_is_refused_in_one_line(capsys, tmp_path):
    assert main(["audit", str(tmp_path / "no.csv")]) == 2
    assert "no.csv cannot be read as CSV: No such file or directory" in capsys.readouterr().err


def test_an_audit_is_written_as_json_and_as_a_page_with_its_figure(audit, tmp_path):
    code, out, _ = audit(WHOLE, "--json")
    differences = json.loads(out)["document"]["sections"][1]
    assert (code, differences["figures"][0]["rows"][0]["name"]) == (0, "atr")
    assert audit(WHOLE, "--out", str(tmp_path / "audit.html"))[0] == 0
    assert "<svg" in (tmp_path / "audit.html").read_text()
    assert "the file name must end in .html" in audit(WHOLE, "--out", "audit.pdf")[2]
