from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise

import pytest

from atrium.base.errors import ConfigError
from atrium.data.arithmetic import (
    arithmetic_splits,
    draw_questions,
    guessed_answer,
    held_out_questions,
    slipping_solution,
    solution,
)
from atrium.data.settings import ArithmeticSettings

SETTINGS = ArithmeticSettings(num_train=3000)


@pytest.fixture(scope="module")
def splits():
    return arithmetic_splits(SETTINGS)


def _evaluate(question):
    """The partial results of a question, found another way than the source does: by a small parser."""
    assert question.endswith("=")
    results = [int(question[0])]
    for sign, digit in re.findall(r"([+-])(\d)", question[1:]):
        results.append(results[-1] + int(digit) if sign == "+" else results[-1] - int(digit))
    return results


def _steps(text):
    """The steps of a worked solution as (before, term, after), and the boxed value."""
    *steps, box = text.split(";")
    parsed = [re.fullmatch(r"(\d+)([+-]\d)=(\d+)", step).groups() for step in steps]
    return [(int(before), term, int(after)) for before, term, after in parsed], _boxed(box)


def _boxed(text):
    return int(re.fullmatch(r"\\boxed\{(\d+)\}", text).group(1))


def test_the_worked_solution_is_the_documented_one():
    assert solution("7+8-4+3=") == r"7+8=15;15-4=11;11+3=14;\boxed{14}"


@pytest.mark.parametrize("question", ["1-9=", "1-2+3=", "1+2", "10+1="])
def test_solution_of_what_is_not_a_question_raises_value_error(question):
    with pytest.raises(ValueError, match="expected a question of the chain task"):
        solution(question)


def test_every_problem_is_legal_and_its_answer_right(splits):
    for problem in (*splits.train.problems, *splits.validation.problems, *splits.test.problems):
        results = _evaluate(problem.question)
        assert re.fullmatch(r"[1-9]([+-][1-9])+=", problem.question)
        assert min(results) >= 0
        assert problem.answer == str(results[-1])
        assert problem.metadata == {"level": str(len(results))}
        assert 2 <= len(results) <= 7


def test_every_worked_solution_is_right_at_every_step(splits):
    for problem in splits.test.problems:
        steps, answer = _steps(solution(problem.question))
        results = _evaluate(problem.question)
        assert [(before, after) for before, _, after in steps] == list(pairwise(results))
        assert answer == results[-1] == int(problem.answer)


def test_the_splits_have_the_asked_sizes_names_and_ids(splits):
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (3000, 192, 192)
    assert splits.train.problems[17].problem_id == "train-00017"
    assert splits.test.name == "arithmetic-test"


def test_no_question_occurs_in_two_splits_and_held_out_ones_occur_once(splits):
    train = {problem.question for problem in splits.train.problems}
    validation = [problem.question for problem in splits.validation.problems]
    test = [problem.question for problem in splits.test.problems]
    assert len(set(validation) | set(test)) == 2 * 192
    assert not train & (set(validation) | set(test))
    assert held_out_questions(SETTINGS) == {*validation, *test}


def test_levels_are_uniform(splits):
    counts = Counter(problem.metadata["level"] for problem in splits.train.problems)
    # 500 expected at each of six levels, standard deviation 20.
    assert all(400 < counts[str(level)] < 600 for level in range(2, 8))


def test_both_operations_and_all_digits_occur_about_equally_often(splits):
    terms = Counter(term for p in splits.train.problems for term in re.findall(r"[+-]\d", p.question))
    assert len(terms) == 18
    plus = sum(count for term, count in terms.items() if term[0] == "+")
    assert 0.5 < plus / terms.total() < 0.65


def test_other_training_questions_never_are_held_out():
    questions = set(islice(draw_questions(SETTINGS, "elsewhere"), 3000))
    assert not questions & held_out_questions(SETTINGS)


def test_the_seed_decides_the_splits_and_their_sizes_do_not_shift_the_rest():
    again = arithmetic_splits(ArithmeticSettings(num_train=100))
    other = arithmetic_splits(ArithmeticSettings(num_train=100, seed=1))
    longer = arithmetic_splits(ArithmeticSettings(num_train=150))
    assert again.test.content_hash != other.test.content_hash
    assert longer.train.problems[:100] == again.train.problems
    assert longer.test.content_hash == again.test.content_hash


def test_the_built_in_test_split_is_stable_over_versions():
    splits = arithmetic_splits(ArithmeticSettings(num_train=1))
    assert splits.test.content_hash == "8a024ae4013f7fc2885ddd6c16fb40aed8b82459fdf392123f7a267481c8ed86"


def test_a_task_without_levels_is_refused():
    with pytest.raises(
        ConfigError, match=r"dataset\.min_operands must be at most dataset\.max_operands=4, got 5"
    ):
        arithmetic_splits(ArithmeticSettings(min_operands=5, max_operands=4))


def test_a_level_with_too_few_questions_is_refused_rather_than_searched_forever():
    # Two operands allow 81 sums and 45 differences.
    with pytest.raises(ConfigError, match="2 operands remain"):
        arithmetic_splits(ArithmeticSettings(max_operands=2, num_train=10, num_validation=60, num_test=67))


@pytest.mark.parametrize("question", ["7+8", "7+0=", "17+8=", "7*8=", "7=", "", "7+8=15"])
def test_text_that_is_no_question_is_refused(question):
    with pytest.raises(ValueError, match="expected a question"):
        solution(question)


def test_slipping_solutions_slip_as_often_as_asked_by_one_or_two_and_carry_it_on(splits):
    rng = random.Random(5)
    num_steps = num_slips = 0
    for problem in splits.train.problems:
        steps, answer = _steps(slipping_solution(problem.question, rng, slip_frac=0.12))
        assert steps[0][0] == _evaluate(problem.question)[0]
        assert answer == steps[-1][2]
        assert all(after == before for (_, _, after), (before, _, _) in pairwise(steps))
        for before, term, after in steps:
            slip = after - (before + int(term))
            assert -2 <= slip <= 2
            num_steps += 1
            num_slips += slip != 0
    assert num_slips / num_steps == pytest.approx(0.12, abs=0.01)


def test_slips_of_zero_and_one_are_exact():
    rng = random.Random(0)
    assert slipping_solution("7+8-4=", rng, slip_frac=0.0) == solution("7+8-4=")
    steps, _ = _steps(slipping_solution("7+8-4=", rng, slip_frac=1.0))
    assert all(after != before + int(term) for before, term, after in steps)


def test_guesses_are_wrong_as_often_as_asked_by_one_or_two_and_never_negative():
    rng = random.Random(1)
    errors = Counter(_boxed(guessed_answer("5-5=", rng, error_frac=0.3)) for _ in range(4000))
    assert set(errors) == {0, 1, 2}
    assert 1 - errors[0] / 4000 == pytest.approx(0.3, abs=0.03)
    around = Counter(_boxed(guessed_answer("5+5=", rng, error_frac=1.0)) for _ in range(400))
    assert set(around) == {8, 9, 11, 12}


def test_the_data_package_loads_neither_torch_nor_transformers():
    code = (
        "import sys, atrium.data.problems, atrium.data.arithmetic, atrium.data.prompts;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
