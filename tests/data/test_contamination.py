"""Which training problems are taken for a benchmark's: equal questions, and long runs of shared words."""

from __future__ import annotations

from atrium.base.records import Problem
from atrium.data.contamination import Contamination, find_overlaps

HELD = (
    "A farmer has 12 cows and 7 sheep on a field of 30 acres. How many animals does the farmer have in all?"
)
QWEN = Contamination(num_words=13, min_common_frac=0.6)
OPEN_R1 = Contamination(num_words=8, min_common_frac=0.0)
EQUAL = Contamination(num_words=None, min_common_frac=0.0)


def problems(*questions: str) -> list[Problem]:
    return [
        Problem(problem_id=f"p{index}", question=text, answer="1", metadata={})
        for index, text in enumerate(questions)
    ]


def found(question: str, rule: Contamination) -> bool:
    return bool(find_overlaps(problems(question), {"exam": problems("What is 3?", HELD)}, rule))


def test_the_same_question_is_found_by_every_rule_and_whatever_its_layout():
    for rule in (QWEN, OPEN_R1, EQUAL):
        training = problems("What  is $3$", "What is 70?")
        (overlap,) = find_overlaps(training, {"exam": problems("What is 3?", HELD)}, rule)
        assert (overlap.problem_id, overlap.benchmark, overlap.held_id) == ("p0", "exam", "p0")


def test_a_question_with_words_around_it_is_found_by_its_words():
    for question in (
        "Solve. " + HELD,
        HELD.upper(),
        HELD.replace("12 cows", r"$12$ cows").replace(" field", "\nfield"),
    ):
        assert found(question, QWEN)
        assert found(question, OPEN_R1)
    (overlap,) = find_overlaps(problems("Solve. " + HELD), {"exam": problems(HELD)}, QWEN)
    assert overlap.shared == "a farmer has 12 cows and 7 sheep on a field of 30"


def test_a_common_beginning_is_no_repetition_for_who_asks_for_a_share():
    other = (
        HELD.split(" acres")[0]
        + " miles by 20, and sells a third of it to a neighbour who builds twelve houses there."
    )
    assert found(other, OPEN_R1)
    assert not found(other, QWEN)
    assert not found(HELD.replace("12", "13").replace("sheep", "hens").replace("30", "31"), EQUAL)


def test_questions_shorter_than_the_run_are_compared_as_a_whole():
    assert not found("What is 4?", OPEN_R1)
    assert find_overlaps([], {"exam": problems(HELD)}, QWEN) == ()
