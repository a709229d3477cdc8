"""`atrium import` of tables: CSV, JSON Lines and Parquet, their mapping, and what is refused."""

from __future__ import annotations

import csv
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.compare.documents import tables_of
from tests.run_records import evaluated_sample, leave, method_settings

from atrium.base.errors import DataError
from atrium.base.records import BenchmarkResult, Problem
from atrium.cli.app import main
from atrium.compare.outcomes import At, read_answers
from atrium.compare.run_comparison import compare_runs
from atrium.evaluation.results import summarize
from atrium.imports.files import read_errors
from atrium.runs.find import find_runs, list_runs
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.sample_files import read_evaluated
from atrium.runs.status import RunState


def answers(methods=("grpo", "ours"), seeds=(0, 1), num_problems=12, num_samples=2):
    """Rows of a results table; later methods are right more often."""
    draws = random.Random(0)
    return [
        {
            "model": method,
            "seed": seed,
            "problem_id": f"q{problem}",
            "prompt": f"{problem} + 1 =",
            "sample": sample,
            "acc": int(draws.random() < 0.4 + 0.3 * place),
        }
        for place, method in enumerate(methods)
        for seed in seeds
        for problem in range(num_problems)
        for sample in range(num_samples)
    ]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("ending", "write"), [("csv", write_csv), ("jsonl", write_jsonl), ("parquet", write_parquet)]
)
def test_a_table_becomes_a_run_per_method_and_seed_with_its_own_mean(ending, write, tmp_path, imported):
    rows = answers()
    write(tmp_path / f"r.{ending}", rows)
    code, printed = imported(f"r.{ending}", "--experiment", "others")
    assert code == 0
    assert printed.index("method is column model") < printed.index("4 runs written into others")
    for run in find_runs("runs", ["others"]):
        method, seed = run.path.name.split("-")[2], int(run.path.name.split("-s")[1][0])
        own = [row["acc"] for row in rows if (row["model"], row["seed"]) == (method, seed)]
        answered = read_answers(run, "imported", 0)
        assert (answered.num_samples, len(answered.num_correct)) == (2, 12)
        assert sum(answered.num_correct.values()) / 24 == sum(own) / len(own)


def test_an_import_is_listed_shown_and_compared_with_its_unknown_settings(tmp_path, imported, capsys):
    write_csv(tmp_path / "r.csv", answers(seeds=(0, 1, 2)))
    assert imported("r.csv", "--experiment", "others", "--setting", "model.source=Qwen/Qwen3-1.7B")[0] == 0
    for command in (["runs"], ["show", "last"], ["samples", "last"], ["report", "others"]):
        assert main(command) == 0
    printed = capsys.readouterr().out
    assert "imported  others/" in printed
    assert "Qwen/Qwen3-1.7B" in printed
    assert "unknown for grpo and ours: training problems, optimizer" in printed
    assert ", with unknown settings of ours and grpo," in printed
    assert "random draws" not in printed
    assert "Whether runs of ours and grpo diverged is unknown." in printed


def test_the_same_import_twice_writes_nothing_and_another_mapping_is_refused(tmp_path, imported):
    write_csv(tmp_path / "r.csv", answers())
    assert imported("r.csv", "--experiment", "others")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, printed = imported("r.csv", "--experiment", "others")
    assert (code, "nothing was written" in printed) == (0, True)
    code, printed = imported("r.csv", "--experiment", "others", "--benchmark", "aime24")
    assert (code, "was already imported as others/" in printed) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_sources_of_the_same_content_are_refused(tmp_path, imported):
    for name in ("a.csv", "b.csv"):
        write_csv(tmp_path / name, answers())
    code, printed = imported("a.csv", "b.csv", "--experiment", "others")
    assert (code, "a.csv and b.csv have the same content" in printed) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_shows_the_runs_and_writes_nothing(tmp_path, imported):
    write_csv(tmp_path / "r.csv", answers())
    code, printed = imported("r.csv", "--experiment", "others", "--dry-run")
    assert (code, "4 runs would be written into others" in printed) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


def test_files_without_seeds_count_as_one_seed_each(tmp_path, imported, capsys):
    rows = [{key: value for key, value in row.items() if key != "seed"} for row in answers(seeds=(0,))]
    for name in ("a.csv", "b.csv"):
        write_csv(tmp_path / name, [{**row, "note": name} for row in rows])
    code, printed = imported("a.csv", "b.csv", "--experiment", "others")
    assert (code, "1 (not stated)" in printed) == (0, True)
    assert main(["compare", "others", "--no-files"]) == 0
    printed = capsys.readouterr().out
    assert "seeds (numbered by the import)" in printed
    assert "unpaired: seeds 1, 3 against 0, 2" in printed
    tables = tables_of(compare_runs(find_runs("runs", ["others"]), at=At.LAST))
    assert {row[3] for row in tables["Arms"]} == {"–"}, "no step is recorded"
    code, _ = imported("a.csv", "--experiment", "single")
    pairs = compare_runs(find_runs("runs", ["single"]), at=At.LAST).pairs
    assert {pair.verdict.kind for pair in pairs} == {"one_seed"}


def test_columns_are_mapped_by_flags_and_by_a_yaml_file(tmp_path, imported):
    rows = [
        {"who": "a", "deep": {"id": 3.0}, "points": 0.7},
        {"who": "a", "deep": {"id": 4.0}, "points": 0.2},
    ]
    write_jsonl(tmp_path / "r.jsonl", rows)
    (tmp_path / "map.yaml").write_text("method: who\nproblem: deep.id\n", encoding="utf-8")
    flags = ("r.jsonl", "--experiment", "e", "--map", "map.yaml", "score=points")
    code, printed = imported(*flags)
    assert (code, "use --correct-at X to count scores" in printed) == (2, True)
    assert imported(*flags, "--correct-at", "0.5")[0] == 0
    (run,) = list_runs("runs")
    assert read_answers(run, "imported", 0).num_correct == {"3": 1, "4": 0}


def own_run(runs_dir, questions, seed):
    """A run of Atrium's own, of atr, that answered these questions."""
    folder = RunFolder.create(runs_dir, "own", "atr", seed)
    settings = method_settings("atr", {"kind": "kl3", "delta": 0.0231})
    folder.write_config({"seed": seed, "num_steps": 1, **settings, "evaluation": {"seed": 0}})
    writer = RunFolderWriter(folder)
    samples = [
        evaluated_sample(Problem(problem_id=f"own-{n}", question=text, answer="1"), is_correct=n % 2)
        for n, text in enumerate(questions)
    ]
    results = summarize(samples, num_samples=1, pass_at=[1])
    writer.begin(step=0, num_steps=1)
    writer.step(1, {})
    writer.evaluation(BenchmarkResult(step=1, benchmark="sums", samples=samples, results=results))
    leave(writer, RunState.FINISHED)


def test_problems_of_an_import_and_an_own_run_match_by_text_and_the_rest_is_reported(
    tmp_path, imported, capsys
):
    for seed in (0, 1):
        own_run(tmp_path / "runs", [f"{n}  +  1 =" for n in range(3, 12)], seed)
    rows = [{**row, "step": 1} for row in answers(methods=("ours",), num_samples=1)]
    for row in rows:
        del row["problem_id"]
    write_csv(tmp_path / "r.csv", rows)
    assert imported("r.csv", "--experiment", "others", "--benchmark", "sums")[0] == 0
    assert main(["compare", "own", "others", "--no-files"]) == 0
    printed = capsys.readouterr().out
    assert "sums: problems are matched by their text because their ids differ" in printed
    assert "sums: 9 of 12 problems were answered by all runs" in printed


BASE = {"method": "a", "seed": 0, "problem": "p", "sample": 0, "correct": 1}


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([BASE, BASE], (), "sample 0 of problem 'p' appears twice for method a, seed 0"),
        ([BASE, {**BASE, "problem": "q"}, {**BASE, "sample": 1}], (), "use --incomplete to limit"),
        ([{**BASE, "correct": "maybe"}], (), "row 1: the score must be true, false or a number, got 'maybe'"),
        ([{**BASE, "correct": ""}], (), "row 1: the score must be true, false or a number, got nothing"),
        ([{**BASE, "correct": "nan"}], (), "the score must be a finite number, got nan"),
        ([{**BASE, "seed": "x"}], (), "row 1: seed must be a whole number from 0 to 2147483647, got 'x'"),
        ([{**BASE, "seed": -1}], (), "seed must be a whole number from 0"),
        ([{**BASE, "num_tokens": 2**40}], (), "tokens must be a whole number from 0"),
        ([{**BASE, "seed": ""}], (), "the seed is missing"),
        ([{**BASE, "method": "a\x1bb"}], (), "must have at most 100 characters, all of them printable"),
        ([{"method": "a", "mean": 0.5, "n": 30}], (), "no problem column, only method, mean, n"),
        ([{"problem": "p", "correct": 1}], (), "--map method=COLUMN, or --method NAME"),
        ([{**BASE, "id": 1}], (), "problem and id could each be the problem; give --map problem=COLUMN"),
        ([BASE], ("--map", "score=nope"), "--map score=nope: unknown column; use one of method, seed"),
        ([BASE], ("--map", "method=seed", "--method", "b"), "method=seed cannot be combined with --method"),
        ([BASE], ("--correct-at", "nan"), "--correct-at must be a finite number, got nan"),
        ([{**BASE, "benchmark": name} for name in ("a b", "a_b")], (), "both be stored as a_b; rename"),
        ([BASE], ("--map", "size=seed"), "unknown role size; use one of method"),
        ([BASE], ("--map", "nowhere.yaml"), "expected ROLE=COLUMN or a readable YAML file"),
        ([BASE], ("--experiment", "../out"), "experiment_name must start with a letter or digit"),
        ([BASE], ("--experiment", "sweeps"), "experiment_name=sweeps"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_one_line_and_nothing_is_written(rows, flags, message, tmp_path, imported):
    write_csv(tmp_path / "r.csv", rows)
    code, printed = imported("r.csv", *(() if "--experiment" in flags else ("--experiment", "e")), *flags)
    assert code == 2
    assert message in printed
    assert printed.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.csv", b"", "contains no rows"),
        ("r.csv", b"method,problem,correct\na,p,1\na,q", "line 3: expected 3 cells"),
        ("r.csv", b"method,problem,correct\na,\xff\xfe,1\n", "is not UTF-8 text"),
        ("r.csv", b"method,method,correct\na,b,1\n", "contains a column name twice"),
        ("r.jsonl", b'{"method": "a", "problem": "p", "correct": 1}\n{"m', "line 2 is not valid JSON"),
        ("r.jsonl", b"[1]\n", "is not an object with fields"),
        ("r.jsonl", b"[" * 100_000 + b"\n", "is not valid JSON"),
        ("r.parquet", b"PAR1 no parquet", "is not a complete Parquet file"),
        ("r.pkl", b"\x80\x04K\x01.", "unknown format; choose a table (.csv, .tsv, .jsonl, .parquet)"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line_and_nothing_is_written(name, content, message, tmp_path, imported):
    (tmp_path / name).write_bytes(content)
    code, printed = imported(name, "--experiment", "e")
    assert (code, message in printed) == (2, True), printed
    assert printed.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "runs").exists()


def test_unpaired_surrogates_and_semicolons_are_read(tmp_path, imported):
    (tmp_path / "r.jsonl").write_text(
        r'{"method": "a", "problem": "p\ud800", "question": "\ud800", "sample": "\ud800", "correct": 1}'
    )
    (tmp_path / "r.csv").write_text("method;problem;correct\nb;p;1\n")
    assert imported("r.jsonl", "r.csv", "--experiment", "e")[0] == 0
    assert [list(read_answers(run, "imported", 0).num_correct) for run in list_runs("runs")] == [
        ["p?"],
        ["p"],
    ]


def test_a_hostile_benchmark_and_method_stay_inside_the_experiment(tmp_path, imported):
    rows = [{"method": "../../out", "problem": "../p", "correct": True, "benchmark": "../../../etc"}]
    write_jsonl(tmp_path / "r.jsonl", rows)
    assert imported("r.jsonl", "--experiment", "e")[0] == 0
    (run,) = list_runs("runs")
    assert run.path.parent == (tmp_path / "runs" / "e").relative_to(tmp_path)
    assert list(read_evaluated(run)) == ["etc"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "runs"]


def test_incomplete_keeps_the_fewest_samples_of_every_problem(tmp_path, imported):
    rows = [{**BASE, "sample": k, "correct": int(k == 2)} for k in range(3)]
    rows += [{**BASE, "problem": "q", "sample": k, "correct": 1} for k in range(2)]
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, printed = imported("r.jsonl", "--experiment", "e", "--incomplete")
    assert (code, "problems have 2 to 3 answers; the first 2 of each are kept" in printed) == (0, True), (
        printed
    )
    (run,) = list_runs("runs")
    answered = read_answers(run, "imported", 0)
    assert (answered.num_samples, answered.num_correct) == (2, {"p": 0, "q": 2})


def test_curves_that_disagree_are_two_seeds_or_refused(tmp_path, imported):
    for name, reward in (("a", 0.25), ("b", 0.5)):
        (tmp_path / "logs" / name).mkdir(parents=True)
        state = {"log_history": [{"step": 1, "reward": reward}]}
        (tmp_path / "logs" / name / "trainer_state.json").write_text(json.dumps(state))
    code, printed = imported("logs", "--experiment", "e", "--method", "m", "--seed", 0)
    assert (code, "different values of rollout/reward at step 1" in printed) == (2, True), printed
    assert imported("logs", "--experiment", "e", "--method", "m")[0] == 0
    assert len(list_runs("runs")) == 2


def test_an_imported_run_gets_findings_without_advice_and_is_not_trained_again(tmp_path, imported, capsys):
    state = {
        "log_history": [{"step": step, "frac_reward_zero_std": 1.0, "reward": 0.0} for step in range(12)]
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert imported("trainer_state.json", "--experiment", "e", "--method", "m")[0] == 0
    (run,) = list_runs("runs")
    assert main(["show", "last"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "all rewards were equal (mean reward 0), so there was nothing to learn from imported e/" in printed
    assert main(["rerun", run.name]) != 0
    assert "another program trained this run" in capsys.readouterr().err
    assert main(["compare", "e"]) != 0
    assert "has only curves, not scores" in capsys.readouterr().err


@pytest.mark.parametrize(("num_rows", "is_noted"), [(96, False), (94, True)])
def test_runs_with_different_numbers_of_problems_are_noted(num_rows, is_noted, tmp_path, imported):
    write_csv(tmp_path / "r.csv", answers()[:num_rows])
    code, printed = imported("r.csv", "--experiment", "others", "--dry-run")
    assert (code, "imported: runs have 11 to 12 problems; a comparison uses" in printed) == (0, is_noted)


def test_hidden_files_and_files_in_hidden_directories_are_left_out(tmp_path, imported):
    for name in ("x.csv", ".y.csv", ".ipynb_checkpoints/x-checkpoint.csv", "a/.b/c/x.csv"):
        path = tmp_path / ".data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_csv(path, [BASE])
    assert imported(".data", "--experiment", "e")[0] == 0
    (run,) = list_runs("runs")
    assert json.loads(run.provenance_file.read_text())["import"]["files"].keys() == {".data/x.csv"}


def test_an_error_without_a_message_is_named_by_its_type(tmp_path):
    with (
        pytest.raises(DataError, match=r"a.json is damaged \(ValueError\)"),
        read_errors(tmp_path / "a.json"),
    ):
        raise ValueError
