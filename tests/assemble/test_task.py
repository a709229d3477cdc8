"""Training sets and benchmarks from configuration: local and real files, suites, graders, whole runs."""

from __future__ import annotations

import json
import random
import re

import pytest
from tests.benchmark_files import BENCHMARK_FILES, needs_benchmark_files

from atrium.assemble.benchmarks import load_benchmarks
from atrium.assemble.checks import check_before_run
from atrium.assemble.datasets import load_dataset
from atrium.assemble.graders import BenchmarkGraders, grader_version
from atrium.assemble.prepared import prepare
from atrium.assemble.problem_sets import recorded_unreadable
from atrium.assemble.references import Loading, check_references
from atrium.assemble.task import Task, build_task, evaluated_benchmark, longest_prompt, require_room
from atrium.base.errors import ConfigError, DataError
from atrium.base.records import Problem
from atrium.config.compose import compose, from_json, to_json
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.models.context import Context
from atrium.runs.listener import Listener

UNREADABLE_GOLDS: dict[str, set[str]] = {
    "aime2024": set(),
    "math500": set(),
    "gsm8k_test": set(),
    "math_train_800": set(),
}
"""The golds of the real files that are not graded equal to the same answer in another form."""


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sums(tmp_path):
    """A file of sixty short sums."""
    rng = random.Random(0)
    rows = {}
    while len(rows) < 60:
        terms = [rng.randint(1, 9) for _ in range(3)]
        question = "+".join(map(str, terms)) + "="
        rows[question] = {"problem": question, "answer": sum(terms), "level": f"Level {len(rows) % 3}"}
    return _write(tmp_path / "sums.jsonl", rows.values())


@pytest.fixture
def load(tmp_path):
    """Loads what overrides describe: the dataset's parts and the benchmarks, with what was said."""

    def load_task(*overrides) -> tuple[Task, list[str]]:
        said: list[str] = []
        return build_task(compose(overrides), Loading(cache_dir=tmp_path / "cache", log=said.append)), said

    return load_task


def _file(path, *more, group="dataset"):
    sizes = ("num_validation=8",) if group == "dataset" else ()
    return [f"{group}=file", *(f"{group}.{line}" for line in (f"source={path}", *sizes, *more))]


def test_a_local_file_is_split_and_its_own_test_problems_are_a_benchmark(load, sums):
    task, said = load(*_file(sums, "num_test=6", "name=sums"), "benchmark=held_out")
    assert (len(task.train), len(task.validation.problems), len(task.benchmarks[0].problems)) == (46, 8, 6)
    assert (task.validation.name, task.benchmarks[0].name) == ("sums-validation", "sums-test")
    assert said == []
    ids = [p.problem_id for part in (task.train, task.validation, *task.benchmarks) for p in part.problems]
    assert len(set(ids)) == 60


def test_the_default_task_is_the_arithmetic_one(load):
    task, said = load()
    assert (task.train.name, task.validation.name, task.benchmarks[0].name) == (
        "arithmetic-train",
        "arithmetic-validation",
        "arithmetic-test",
    )
    assert task.validation.require_stop
    assert task.benchmarks[0].require_stop
    assert said == []


def test_a_benchmark_loads_the_same_without_a_run(load, sums, tmp_path):
    for overrides in ([], [*_file(sums, "num_test=6"), "benchmark=held_out"]):
        config = compose(overrides)
        (loaded,) = load_benchmarks(
            config.benchmark,
            config.dataset,
            verifier=config.grader,
            loading=Loading(cache_dir=tmp_path, log=pytest.fail),
        )
        task, _ = load(*overrides)
        assert loaded == task.benchmarks[0]


def test_problems_of_a_chosen_benchmark_are_not_trained_on(load, sums, tmp_path):
    rows = [json.loads(line) for line in sums.read_text().splitlines()]
    exam = _write(tmp_path / "exam.jsonl", [*rows[:7], {"problem": "1-1=", "answer": 0}])
    task, said = load(*_file(sums), *_file(exam, "name=exam", group="benchmark"))
    held = {problem.question for problem in task.benchmarks[0].problems}
    for part in (task.train, task.validation.dataset):
        assert not held & {problem.question for problem in part.problems}
    assert len(task.train) == 60 - 8 - 7
    assert task.origin.num_overlapping == 7
    (line,) = said
    assert line.startswith("file: 7 problems are also in the benchmark exam and are dropped: file-")
    assert line.endswith("(the same question) and 4 more")
    assert task.origins["dataset"]["warnings"] == (line.removeprefix("file: "),)
    assert len(task.origins["dataset"]["overlaps"]) == 7
    with pytest.raises(DataError, match="every problem is also in a benchmark"):
        load(*_file(sums), *_file(sums, group="benchmark"))


@pytest.mark.parametrize(("unreadable", "num_left"), [("drop", 59), ("keep", 60)])
def test_golds_that_the_grader_cannot_read_are_listed_and_dropped_or_kept(load, sums, unreadable, num_left):
    lines = sums.read_text().splitlines()
    sums.write_text("\n".join([*lines[:59], json.dumps({"problem": "?", "answer": "{\\frac{1}{2}"})]))
    task, (said,) = load(*_file(sums, f"unreadable={unreadable}", "num_test=1"), "benchmark=held_out")
    assert len(task.train) == num_left - 9
    assert "1 reference answer cannot be read, so equal answers in another form" in said
    assert task.origin.num_unreadable == 1
    with pytest.raises(DataError, match="unreadable=drop or keep"):
        load(*_file(sums, "unreadable=error", "num_test=1"), "benchmark=held_out")


class _Heard(Listener):
    def __init__(self):
        self.phases = []
        self.num_done = 0

    def phase(self, name, total=None):
        self.phases.append((name, total))

    def advance(self, num=1, detail=""):
        self.num_done += num


def _checked(path, tmp_path, timeout_s=30.0, unreadable=None, name="hard"):
    said, heard = [], _Heard()
    verifier = MathVerifier(num_workers=1, timeout_s=timeout_s)
    config = compose(_file(path, f"name={name}", "unreadable=drop", group="benchmark"))
    loading = Loading(cache_dir=tmp_path, log=said.append, listener=heard, unreadable=unreadable or {})
    loaded = load_benchmarks(config.benchmark, config.dataset, verifier=verifier, loading=loading)
    return loaded[0], said, heard


@pytest.mark.full
def test_a_reference_whose_check_times_out_is_kept_and_told(tmp_path):
    file = _write(tmp_path / "hard.jsonl", [{"problem": "Sum?", "answer": r"\sqrt{x+\sin(y)}"}])
    loaded, said, _ = _checked(file, tmp_path, timeout_s=0.001)
    assert len(loaded.problems) == loaded.origin.num_unchecked == 1
    assert loaded.origin.unreadable == ()
    assert "hard: 1 references were not checked within 0.001 s, and their problems are kept; " in said[0]
    later, said, _ = _checked(file, tmp_path)
    assert (later.origin.num_unchecked, said) == (0, [])


def test_checks_are_cached_by_reference_and_show_a_progress_bar_where_they_are_many(tmp_path):
    rows = [{"problem": f"Root {n}?", "answer": rf"\sqrt{{x^{{{n}}}+\sin(y)}}"} for n in range(1, 22)]
    file = _write(tmp_path / "hard.jsonl", [*rows, {"problem": "?", "answer": "{\\frac{1}{2}"}])
    loaded, said, heard = _checked(file, tmp_path)
    assert heard.phases == [("reading hard", None), ("checking references of hard", heard.num_done)]
    assert heard.num_done >= 20
    assert len(loaded.problems) == 21
    again, said_again, heard = _checked(file, tmp_path, timeout_s=0.001)
    assert (again, said_again) == (loaded, said)
    assert heard.phases == [("reading hard", None)]


def test_what_a_run_dropped_when_it_began_is_dropped_again_without_a_check(tmp_path):
    rows = [
        {"problem": f"Root {n}?", "answer": rf"\sqrt{{x^{{{n}}}+\sin(y)}}", "id": f"r{n}"} for n in (2, 3)
    ]
    file = _write(tmp_path / "hard.jsonl", rows)
    record = tmp_path / "provenance.json"
    record.write_text(json.dumps({"origins": {"benchmarks": {"hard": {"unreadable": ["r2"]}}}}))
    recorded = recorded_unreadable(record)
    loaded, (said,), _ = _checked(file, tmp_path, timeout_s=0.001, unreadable=recorded)
    assert [problem.problem_id for problem in loaded.problems] == ["r3"]
    assert said == "hard: 1 references could not be read when this run began; dropped"
    assert loaded.origin.unreadable == ("r2",)
    assert recorded_unreadable(tmp_path / "none.json") == {}
    record.write_text(json.dumps({"origins": {"dataset": {"num_rows": 2}}}))
    assert recorded_unreadable(record) == {}


def test_a_grader_that_does_not_fit_the_golds_is_found_at_load(load, sums):
    with pytest.raises(DataError, match="no problem would remain; choose a grader "):
        load(*_file(sums, "num_test=1"), "benchmark=held_out", "grader=multiple_choice")


def test_a_problem_whose_tolerance_is_no_number_is_named_at_load(load, sums, tmp_path):
    rows = [{"problem": "e?", "answer": 2.718, "id": "e", "error": "a bit"}]
    file = _write(tmp_path / "near.jsonl", rows)
    own = ("grader={kind: math_tolerance, tolerance_from: error}", "fields.metadata={error: error}")
    with pytest.raises(
        DataError, match="near: problem e cannot be used: a problem's field 'error' must be a number"
    ):
        load(*_file(sums), *_file(file, *own, "name=near", group="benchmark"))


def test_a_benchmark_has_a_grader_of_its_own(load, sums, tmp_path):
    rows = [{"problem": "Pi to two places?", "answer": 3.14}, {"problem": "e?", "answer": 2.718}]
    near = _write(tmp_path / "near.jsonl", rows)
    own = "grader={kind: numeric, relative_tolerance: 0.01}"
    task, _ = load(*_file(sums), *_file(near, own, "name=near", "require_stop=true", group="benchmark"))
    (benchmark,) = task.benchmarks
    assert benchmark.require_stop
    config = compose([])
    with GraderPool(MathVerifier(num_workers=1, timeout_s=10.0, memory_limit_mb=512)) as pool:
        graders = BenchmarkGraders(config.grader, config.model, own=pool)
        numeric = graders.of(benchmark.verifier)
        assert graders.of(task.validation.verifier) is pool
        assert numeric is not pool
        assert graders.of(benchmark.verifier) is numeric
        assert numeric.submit(r"\boxed{3.15}", "3.14").result().is_correct
        assert not pool.submit(r"\boxed{3.15}", "3.14").result().is_correct
        graders.close()


def test_a_run_with_the_numeric_grader_takes_what_is_near():
    config = compose(["grader=numeric", "grader.relative_tolerance=0.05"])
    assert from_json(to_json(config)).grader.relative_tolerance == 0.05
    assert grader_version(config.grader).startswith("numeric, grader ")


def test_a_suite_is_its_members_each_by_its_own_name(tmp_path, sums):
    other = _write(tmp_path / "other.jsonl", [{"problem": "1-1=", "answer": 0}])
    config = compose(
        [
            "benchmark=aime_all",
            *(
                f"benchmark.members.{name}.{setting}"
                for name in ("aime24", "aime25", "aime26")
                for setting in (f"source={other}", "expected_num_rows=null", "expected_num_problems=null")
            ),
            f"benchmark.members.aime25.source={sums}",
            "benchmark.members.aime25.num_problems=5",
        ]
    )
    said: list[str] = []
    loaded = load_benchmarks(
        config.benchmark,
        config.dataset,
        verifier=config.grader,
        loading=Loading(cache_dir=tmp_path, log=said.append),
    )
    assert [(part.name, len(part.problems)) for part in loaded] == [
        ("aime24", 1),
        ("aime25", 5),
        ("aime26", 1),
    ]
    assert said == ["aime25: only the first 5 of 60 problems are used"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=math"], "benchmark.kind=arithmetic requires .* such as benchmark=math500"),
        (
            ["dataset=math", "benchmark=held_out"],
            "dataset.num_test must be at least 1 with benchmark.kind=held_out",
        ),
        (
            ["benchmark=aime_all", "benchmark.members.aime24.name=aime25"],
            "two benchmarks with the name aime25",
        ),
        (
            ["benchmark=aime_all", "benchmark.members.aime24.surce=x"],
            "did you mean benchmark.members.aime24.source",
        ),
        (["dataset=file"], r"dataset\.source is missing: A dataset's Hub id"),
        (["dataset=math", "dataset.instruction=cut"], "dataset.instruction must be one of strip, keep"),
        (["dataset=math", "dataset.fields.question=[]"], "dataset.fields.question"),
        (
            ["dataset=math", "benchmark=math500", "dataset.fields.answer=[]", "dataset.fields.solution=[]"],
            r"dataset\.fields\.answer=\[\] leaves no reference answers",
        ),
        (["benchmark=math500", "benchmark.grader={kind: maths}"], "benchmark.grader.kind must be one of"),
        (["grader.relative_tolerance=0.1"], "grader.relative_tolerance=0.1: unknown key"),
    ],
)
def test_wrong_settings_of_problem_sets_are_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["dataset=file", "dataset.source=no/such/file", "benchmark=math500"], "dataset"),
        (["benchmark=file", "benchmark.source=nowhere.jsonl"], "benchmark"),
        (["benchmark=aime_all", "benchmark.members.aime25.source=./no"], "benchmark.members.aime25"),
    ],
)
def test_a_file_that_is_not_there_is_found_before_anything_is_loaded(tmp_path, overrides, key):
    with pytest.raises(ConfigError, match=rf"{key}\.source=.*: there is no such file or folder"):
        check_before_run(compose([*overrides, f"runs_dir={tmp_path}"]))


def test_too_few_rows_for_the_held_out_parts_are_an_error_before_anything_is_loaded(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("question,answer\n" + "".join(f"1+{number}=,{number + 1}\n" for number in range(60)))
    overrides = ["dataset=file", f"dataset.source={file}", "benchmark=math500", f"runs_dir={tmp_path}"]
    with pytest.raises(DataError, match=r"has 60 problems.*; set num_validation=12 num_test=0"):
        check_before_run(compose([*overrides, "dataset.num_validation=200"]))
    check_before_run(compose([*overrides, "dataset.num_validation=12", "dataset.num_test=0"]))


@needs_benchmark_files
@pytest.mark.full
@pytest.mark.parametrize("name", UNREADABLE_GOLDS)
def test_the_golds_of_the_real_files_grade_correct_against_themselves(name, tmp_path):
    lines = (BENCHMARK_FILES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    problems = [Problem(problem_id=r["id"], question=r["problem"], answer=str(r["answer"])) for r in rows]
    verifier = MathVerifier(num_workers=1, timeout_s=120.0, memory_limit_mb=1024)
    found = check_references(problems, verifier, Loading(cache_dir=tmp_path, log=print), name)
    assert {problem.problem_id for problem, _ in found.unreadable} == UNREADABLE_GOLDS[name]
    assert found.unknown == ()


@needs_benchmark_files
@pytest.mark.parametrize(
    ("benchmark", "file", "num_problems"),
    [("math500", "math500", 500), ("aime24", "aime2024", 30), ("gsm8k", "gsm8k_test", 1319)],
)
def test_a_benchmark_of_the_hub_reads_a_local_copy(tmp_path, benchmark, file, num_problems):
    source = f"benchmark.source={BENCHMARK_FILES / file}.jsonl"
    config = compose([f"benchmark={benchmark}", source, "grader.timeout_s=120"])
    (loaded,) = load_benchmarks(
        config.benchmark,
        config.dataset,
        verifier=config.grader,
        loading=Loading(cache_dir=tmp_path, log=lambda line: None),
    )
    assert (loaded.name, len(loaded.problems)) == (benchmark, num_problems)
    assert loaded.origin.num_unreadable == loaded.origin.num_instructions == 0


@needs_benchmark_files
@pytest.mark.full
def test_math_is_trained_on_without_what_is_in_math500(tmp_path):
    config = compose(
        [
            "benchmark=math500",
            "dataset=math",
            f"dataset.source={BENCHMARK_FILES / 'math_train_800.jsonl'}",
            "dataset.expected_num_rows=null",
        ]
    )
    exam = [
        json.loads(line)
        for line in (BENCHMARK_FILES / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    held = [Problem(problem_id=row["id"], question=row["problem"], answer=row["answer"]) for row in exam]
    splits, origin = load_dataset(
        config.dataset,
        verifier=config.grader,
        loading=Loading(cache_dir=tmp_path, log=lambda line: None),
        benchmarks={"math500": held},
    )
    # No question is the same, but some are with other numbers, and one with other spacing alone.
    assert 1 <= origin.num_overlapping <= 10
    assert any("in the solution set of | x - 2 |" in shared for _, _, shared in origin.overlaps)
    num_train = 300 - origin.num_overlapping
    assert (len(splits.train), len(splits.validation)) == (num_train, 500)
    assert splits.train.problems[0].metadata.keys() == {"level", "subject"}


@pytest.mark.full
def test_a_run_trains_on_a_file_and_is_judged_on_two_benchmarks(runs, sums, tmp_path):
    easy = _write(tmp_path / "easy.jsonl", [{"problem": f"{n}+1=", "answer": n + 1} for n in range(1, 5)])
    long = {"problem": "1+" * 200 + "1=", "answer": 201}
    sums.write_text(sums.read_text() + json.dumps(long) + "\n")
    suite = [
        f"benchmark.members.{name}.{line}"
        for name, path in (("aime24", easy), ("aime25", sums), ("aime26", easy))
        for line in (f"source={path}", "expected_num_rows=null", "expected_num_problems=null")
    ]
    folder = runs.train(
        *_file(sums, "num_train=30", "num_test=0", "fields.metadata={level: level}"),
        "benchmark=aime_all",
        *suite,
        "benchmark.members.aime25.num_problems=3",
        "dataset.unreadable=error",
        "num_steps=2",
        "experiment_name=files",
    )
    summary = json.loads(folder.summary_file.read_text())
    assert set(summary["evaluations"]) == {"file-validation", "aime24", "aime25", "aime26"}
    assert [summary["evaluations"][name]["last"]["num_problems"] for name in ("aime24", "aime25")] == [4, 3]
    assert (summary["status"], summary["num_steps"]) == ("finished", 2)
    provenance = json.loads(folder.provenance_file.read_text())
    assert provenance["data"]["benchmark_content_hashes"].keys() == summary["evaluations"].keys()
    assert provenance["data"]["grader_version"].startswith("math, grader ")
    assert provenance["origins"]["dataset"]["source"] == str(sums)
    assert provenance["origins"]["benchmarks"]["aime25"]["num_problems"] == 3
    assert provenance["origins"]["dataset"]["num_overlapping"] == 3
    sums.write_text(sums.read_text().replace('"answer": 1', '"answer": 2'))
    with pytest.raises(DataError, match=r"the training set, .* changed since the run began"):
        runs.resume(folder, "num_steps=3")


def test_a_validation_prompt_that_is_too_long_is_named_before_training(load, sums):
    settings = [*_file(sums, "num_test=6", "name=sums"), "benchmark=held_out", "evaluation.max_new_tokens=8"]
    task, _ = load(*settings)
    benchmark = evaluated_benchmark(task.validation, compose(settings))
    encoded = {problem.question: [0] * 5 for problem in benchmark.problems}
    assert require_room(benchmark, lambda problem: encoded[problem.question], Context(13)) is benchmark
    long = benchmark.problems[3]
    encoded[long.question] = [0] * 6
    with pytest.raises(DataError, match=r"has 6 tokens.*max_new_tokens=8.* 13 tokens") as refused:
        require_room(benchmark, lambda problem: encoded[problem.question], Context(13))
    assert "sums-validation" in str(refused.value)
    assert repr(long.problem_id) in str(refused.value)


def test_a_grader_that_rejects_the_built_in_answers_is_refused(load):
    with pytest.raises(DataError, match=r"grader\.kind=multiple_choice rejects .* dataset=arithmetic"):
        load("grader=multiple_choice")


@pytest.mark.parametrize("grader", ["math", "math_tolerance", "exact", "numeric"])
def test_graders_that_accept_the_built_in_answers_are_not_refused(load, grader):
    load(f"grader={grader}")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("grader.answer='Answer: {answer}'", "grader.answer='Answer: {answer}': the grader finds no answer"),
        ("model.thinking=true", "model.thinking=true: the grader finds no answer"),
    ],
)
def test_an_answer_place_that_the_built_in_model_never_fills_is_refused(override, named, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(named)):
        prepare(compose([override, f"runs_dir={tmp_path}"]))


def test_the_longest_prompt_is_measured_in_tokens_rather_than_in_characters():
    letters, digits = (
        Problem(problem_id=name, question=text, answer="1")
        for name, text in (("a", "a" * 50), ("b", "数" * 40))
    )
    assert longest_prompt([letters, digits], lambda problem: problem.question.encode()) == 120
