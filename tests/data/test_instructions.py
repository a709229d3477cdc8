"""Instructions that published questions carry are found, and nothing else."""

from __future__ import annotations

import json

import pytest
from tests.benchmark_files import BENCHMARK_FILES, needs_benchmark_files

from atrium.data.instructions import without_instruction

DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'


@pytest.mark.parametrize(
    "instruction",
    [
        "Please reason step by step, and put your final answer within \\boxed{}.",
        "Let's think step by step and output the final answer within \\boxed{}.",
        'Let\'s think step by step and output the final answer after "####".',
        "Put your answer in \\boxed{}",
        "Present the answer in LaTex format: \\boxed{Your answer}",
        "Your final answer should be enclosed in \\boxed{}.",
        "Put your final answer in $\\boxed{\\text{answer}}$.",
        "You must put your answer inside <answer> tags.",
        DAPO_AFTER,
    ],
)
@pytest.mark.parametrize("joint", [" ", "\n", "\n\n"])
@pytest.mark.parametrize(
    "question", ["What is $2+2$?", "Find $x$ if $x^2=4$", "Compute $1+1$. Then double it."]
)
def test_an_instruction_at_the_end_is_taken_off(question, joint, instruction):
    text, taken = without_instruction(question + joint + instruction)
    assert text == question
    assert taken


def test_one_before_and_after_is_taken_off():
    question = "Let $n$ be even. The answer is $a+b$.\n\nFind $a+b$."
    text, taken = without_instruction(f"{DAPO_BEFORE}\n\n{question}\n\n{DAPO_AFTER}")
    assert text == question
    assert taken == f"{DAPO_BEFORE} {DAPO_AFTER}"


@pytest.mark.parametrize(
    "question",
    [
        "Find $x$. Express your answer as a common fraction.",
        "Which number belongs in the box: $3+\\boxed{\\phantom{0}}=5$?",
        "Write the digit that gives $3+\\boxed{\\phantom{0}}=5$ the right result.",
        "Find the sum. Then put the missing digit into $4\\boxed{\\phantom{2}}7$, so that the answer is odd.",
        r"Give the result of \(\boxed{a}+2=7\) as an integer answer.",
        "Put digits into \\boxed{\\phantom{2}} so that the result is largest.",
        "Solve $x^2=4$. Give all solutions.",
        "Show that 2 is even. Write the answer as a decimal.",
        "Put your final answer within \\boxed{}.",
        "",
    ],
)
def test_a_question_without_one_stays_as_it_is(question):
    assert without_instruction(question) == (question, None)


@needs_benchmark_files
@pytest.mark.parametrize("name", ["aime2024", "math500", "gsm8k_test", "math_train_800"])
def test_no_real_problem_loses_a_word(name):
    lines = (BENCHMARK_FILES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["problem"] for line in lines]
    assert [question for question in questions if without_instruction(question)[1]] == []
