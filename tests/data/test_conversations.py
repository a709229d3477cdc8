"""Message lists: the question, its system turn, earlier turns, and what is refused by name."""

from __future__ import annotations

import json

import pytest

from atrium.data.conversations import Asked, asked
from atrium.data.fields import UnreadableValueError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " What is 1+1? "}
ANSWER = {"role": "assistant", "content": "2"}
THEN = {"role": "user", "content": "And 2+2?"}
IMAGE = {"role": "user", "content": [{"type": "image", "image": "a.png"}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (" What? \n", Asked(question="What?")),
        ([USER], Asked(question="What is 1+1?")),
        ([SYSTEM, USER], Asked(question="What is 1+1?", turns=(("system", "Be brief."),))),
        (
            [SYSTEM, USER, ANSWER, THEN],
            Asked(
                question="And 2+2?",
                turns=(("system", "Be brief."), ("user", "What is 1+1?"), ("assistant", "2")),
            ),
        ),
        ([USER, ANSWER], Asked(question="What is 1+1?", solution="2")),
        (
            [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Ho."}],
            Asked(question="Hi?", solution="Ho."),
        ),
        ([{"content": "Without a role?"}], Asked(question="Without a role?")),
        (json.dumps([SYSTEM, USER]), Asked(question="What is 1+1?", turns=(("system", "Be brief."),))),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two?"}],
                }
            ],
            Asked(question="One\ntwo?"),
        ),
        ("[{1, 2}] has how many elements?", Asked(question="[{1, 2}] has how many elements?")),
    ],
)
def test_a_prompt_is_text_or_a_message_list(value, expected):
    assert asked(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "the question is missing"),
        (None, "the question is missing"),
        (3, "the question is missing"),
        ([], "the question is missing"),
        (["text"], "the question is missing"),
        ([SYSTEM], "no user turn with text"),
        ([ANSWER], "no user turn with text"),
        ([{"role": "user", "content": " "}], "no user turn with text"),
        ([USER, SYSTEM, THEN], "a system turn must be the first"),
        (
            [USER, {"role": "tool", "content": "3"}, THEN],
            "a turn has the unknown role 'tool', expected one of system, ",
        ),
        ([{"role": "user", "content": None}], "a turn with the role user has no text"),
        ([IMAGE], "a part of type 'image', expected text"),
    ],
)
def test_a_message_list_without_a_readable_question_says_why(value, reason):
    with pytest.raises(UnreadableValueError, match=reason):
        asked(value)
