"""Where the answer of a completion is found, and where none is."""

from __future__ import annotations

import time

import pytest

from atrium.grading.extraction import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"so $\boxed {42}$", "42"),
        (r"so \fbox{42}", "42"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
        (r"$\\boxed{\\frac{\\pi}{2}}$", r"\\frac{\\pi}{2}"),
        (r"first \boxed{41}, hence \boxed{42}", "42"),
        (r"\boxed{x = \boxed{5}}", r"x = \boxed{5}"),
        (r"an open \boxed{41 and then \boxed{42}", "42"),
        (r"\boxed{185\}", "185\\"),
        ("the answer is 42", None),
        (r"the answer is \boxed{42", None),
        (r"\boxed 42", "42"),
        (r"so \boxed\frac{1}{2}.", r"\frac{1}{2}"),
        (r"in \boxed form", None),
        (r"\framebox{42}", "42"),
        (r"\boxed{42}. Wait: \boxed{17", None),
        (r"\boxed{42}. Wait: \boxed{17\}", "17\\"),
        (r"\boxed{} 42", None),
        (r"\boxed{\ } 42", None),
        (r"\boxed{41} or rather \boxed{\text{ }}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text: str, answer: str | None):
    assert extract_answer(text, thinking=False) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1}, \boxed{2}", "1, 2"),
        (r"\boxed{1} and \boxed{2} or \boxed{3}", "1, 2, 3"),
        (r"$\boxed{1} \quad \text{and} \quad \boxed{2}$", "1, 2"),
        ("\\boxed{41}\n\n\\boxed{42}", "41, 42"),
        (r"\(y_1 = \boxed{a}\) and \( y_2 = \boxed{b}\)", "a, b"),
        (r"x = \boxed{3}, y = \boxed{4}", "3, 4"),
        (r"\boxed{(3, 3)} \text{ for part (a) and } \boxed{(1, 1)}", "(3, 3), (1, 1)"),
        (r"\boxed{42}, \boxed{42}", "42"),
        (r"\boxed{}, \boxed{42}", "42"),
        (r"\boxed{41} is wrong. \boxed{42}", "42"),
        (r"\boxed{41} = \boxed{42}", "42"),
        (r"\boxed{\frac{1}{3}} \approx \boxed{0.333}", r"\frac{1}{3} \approx 0.333"),
        (r"\boxed{41.6} \approx \boxed{42}", "42"),
        (r"\boxed{3.2}. Wait, it is approximately \boxed{3.5}", "3.5"),
        (r"\boxed{41} is only an upper bound, as shown in the lemma before, and \boxed{42}", "42"),
    ],
)
def test_boxes_joined_by_punctuation_or_a_conjunction_are_one_list(text: str, answer: str):
    assert extract_answer(text, thinking=False) == answer


@pytest.mark.parametrize(
    ("text", "with_thinking", "without"),
    [
        (r"<think>\boxed{41}</think> \boxed{42}", "42", "42"),
        (r"\boxed{41}</think> \boxed{42}", "42", "42"),
        (r"<think>\boxed{42}</think> that is it", None, None),
        (r"<think>\boxed{42}", None, None),
        (r"\boxed{42}", None, "42"),
        (r"<think>a</think>\boxed{41}<think>b</think>\boxed{42}", "42", "42"),
        (r"<think>a</think>\boxed{41}<think>\boxed{42}", "41", "41"),
    ],
)
def test_what_was_thought_is_no_answer(text: str, with_thinking: str | None, without: str | None):
    assert extract_answer(text, thinking=True) == with_thinking
    assert extract_answer(text, thinking=False) == without


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + "{" * 100_000 + "1" + "}" * 100_000 + "}",
        r"\boxed{" * 100_000,
        r"\boxed{" * 50_000 + "}" * 50_000,
        r"\boxed{1}" * 50_000,
        r"\boxed{1} and " * 50_000,
        "\\" * 300_000 + r"boxed{1}",
        r"\boxed" * 50_000,
        r"\boxed" + " " * 300_000 + "{1}",
        "</think>" * 50_000 + "<think>" * 50_000,
    ],
    ids=range(9),
)
def test_time_is_linear_in_the_text(text: str):
    start = time.process_time()
    extract_answer(text, thinking=False)
    assert time.process_time() - start < 2.0
