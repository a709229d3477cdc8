"""Tasks of reasoning-gym: their own scorers accept their own references, in the grader's processes."""

from __future__ import annotations

import json

import pytest

from atrium.assemble.datasets import load_dataset
from atrium.assemble.procedural import generator
from atrium.assemble.references import Loading, check_references
from atrium.base.errors import ConfigError, DataError
from atrium.base.records import Completion, FinishReason, Problem, VerdictKind
from atrium.config.compose import compose
from atrium.grading.pool import GraderPool
from atrium.grading.procedural import ReasoningGymVerifier
from atrium.grading.rewards import CorrectnessReward, GradedGroup

TASKS = (
    *(
        "ab",
        "advanced_geometry",
        "aiw",
        "base_conversion",
        "basic_arithmetic",
        "binary_matrix",
        "caesar_cipher",
    ),
    *(
        "chain_sum",
        "complex_arithmetic",
        "count_primes",
        "countdown",
        "fraction_simplification",
        "game_of_life",
    ),
    *("gcd", "isomorphic_strings", "knights_knaves", "lcm", "leg_counting", "letter_counting", "maze"),
    *(
        "n_queens",
        "number_sorting",
        "polynomial_equations",
        "polynomial_multiplication",
        "prime_factorization",
    ),
    *("ransom_note", "simple_equations", "spell_backward", "sudoku", "tower_of_hanoi"),
)
SIZES = ("num_train=3", "num_validation=2", "num_test=2")


def _load(tmp_path, task, *lines, sizes=SIZES, said=None):
    settings = [f"dataset.{line}" for line in (f"task={task}", *sizes, *lines)]
    config = compose(["dataset=reasoning_gym", "benchmark=held_out", *settings])
    log = pytest.fail if said is None else said.append
    loading = Loading(cache_dir=tmp_path, log=log)
    return config, load_dataset(config.dataset, verifier=config.grader, loading=loading)


def _questions(splits):
    return [
        [one.question for one in part.problems] for part in (splits.train, splits.validation, splits.test)
    ]


@pytest.mark.full
def test_the_scorers_of_thirty_tasks_accept_their_references_and_refuse_other_answers(tmp_path):
    problems = []
    with generator() as ask:
        for task in TASKS:
            named = {"task": task, "difficulty": None, "options": {}, "seed": 7}
            reply = ask(named)
            problem = Problem(
                problem_id=task,
                question=reply["question"],
                answer=reply["answer"],
                verifier={"reasoning_gym": {**named, "question_sha256": reply["sha256"]}},
            )
            problems.append(problem)
    verifier = ReasoningGymVerifier(timeout_s=60.0, memory_limit_mb=2048)
    found = check_references(problems, verifier, Loading(cache_dir=tmp_path, log=print), "tasks")
    assert (found.unreadable, found.unknown) == ((), ())
    with GraderPool(verifier) as pool:
        futures = [pool.submit(r"\boxed{nothing of it}", one.answer, one.judged_by) for one in problems]
        assert not any(future.result().is_correct for future in futures)


@pytest.mark.full
def test_the_same_seed_gives_the_same_problems_and_partial_scores_reach_the_reward(tmp_path):
    config, loaded = _load(tmp_path, "countdown", "difficulty=0")
    _, again = _load(tmp_path, "countdown", "difficulty=0")
    _, other = _load(tmp_path, "countdown", "difficulty=0", "seed=1")
    assert loaded == again
    assert loaded[1].revision.startswith("reasoning-gym ")
    assert not {*_questions(loaded[0])[0]} & {*_questions(other[0])[0]}
    problem = loaded[0].train.problems[0]
    texts = [rf"\boxed{{{problem.answer}}}", r"\boxed{1 + 1}", "no box"]
    with GraderPool(config.grader) as pool:
        futures = [pool.submit(text, problem.answer, problem.judged_by) for text in texts]
        right, partial, missing = verdicts = [future.result() for future in futures]
    assert [one.kind for one in verdicts] == [
        VerdictKind.CORRECT,
        VerdictKind.INCORRECT,
        VerdictKind.NO_ANSWER,
    ]
    assert (right.score, missing.score) == (1.0, None)
    assert 0 < partial.score < 1
    assert partial.reason == f"scored {partial.score:.3g} by reasoning-gym"
    completion = Completion(
        token_ids=[1], logprobs=[0.0], text="", finish_reason=FinishReason.STOP, weight_version=0
    )
    group = GradedGroup(
        problem=problem,
        completions=(completion,) * 3,
        verdicts=tuple(verdicts),
        step=1,
        seed=0,
        max_new_tokens=8,
    )
    assert CorrectnessReward()(group) == [1.0, partial.score, 0.0]
    assert CorrectnessReward(correct=3.0, incorrect=1.0)(group)[1] == 1.0 + 2 * partial.score
    assert CorrectnessReward(partial=False)(group) == [1.0, 0.0, 0.0]


@pytest.mark.full
def test_a_scorer_that_finds_another_question_than_the_run_recorded_grades_nothing(tmp_path):
    config, loaded = _load(tmp_path, "gcd")
    problem = loaded[0].train.problems[0]
    changed = json.loads(json.dumps(dict(problem.verifier)))
    changed["reasoning_gym"]["question_sha256"] = "0" * 16
    with GraderPool(config.grader) as pool:
        verdict = pool.submit(rf"\boxed{{{problem.answer}}}", problem.answer, changed).result()
        plain = pool.submit(r"\boxed{\frac{2}{4}}", "0.5", {}).result()
    assert verdict.kind is VerdictKind.CRASHED
    assert plain.is_correct


@pytest.mark.full
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("countdwn",), "unknown task of reasoning-gym; did you mean countdown"),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in (
                (("countdown", "difficulty=99"), "must be between 0 and 4 for countdown"),
                (
                    ("countdown", "options={numbers: 3}"),
                    r"options.numbers: unknown setting of countdown; it has max_num",
                ),
                (("countdown", "options={min_numbers: -3}"), "the generator rejects these settings"),
                (("rush_hour",), "has no reference answers"),
            )
        ),
        (
            (
                "chain_sum",
                "options={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
                "num_train=900",
            ),
            "lower",
        ),
    ],
)
def test_what_the_package_refuses_is_one_line(tmp_path, lines, message):
    with pytest.raises(DataError, match=message) as caught:
        _load(tmp_path, *lines)
    assert "\n" not in str(caught.value)


def test_another_grader_than_the_tasks_scorers_is_refused():
    with pytest.raises(ConfigError, match="set grader=reasoning_gym"):
        compose(["dataset=reasoning_gym", "dataset.task=gcd", "benchmark=held_out", "grader=math"])
