"""Chat templates that change with time or ignore what they are given."""

from __future__ import annotations

import pytest
from tests.data.test_prompts import PROBLEM

from atrium.base.errors import ConfigError
from atrium.data.prompt_checks import check_prompt
from atrium.data.prompts import PromptTemplate, WorkedExample, encode_prompt
from atrium.models.tiny import build_tokenizer

DAY = "2026-11-25"
TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
EXAMPLES = (WorkedExample(question="1+1=", answer="2"),)


def _tokenizer(chat_template):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = chat_template
    return tokenizer


def _check(chat_template, **fields):
    return check_prompt(_tokenizer(chat_template), PromptTemplate(**fields), PROBLEM, DAY)


def _text(chat_template, date=DAY, **fields):
    tokenizer = _tokenizer(chat_template)
    return tokenizer.decode(encode_prompt(tokenizer, PROBLEM, PromptTemplate(**fields), date))


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        ("{{ strftime_now('%Y-%m-%d %H') }}", "2026-11-25 00"),
        ("{% set form = '%d' %}{{ strftime_now(form) }}", "25"),
        ("{% macro day(form) %}{{ strftime_now(form) }}{% endmacro %}{{ day('%d') }}", "25"),
        ("{% set now = strftime_now %}{{ now('%' ~ 'd') }}", "25"),
        ("{{ date_string[:3] }}", "25 "),
        ("{% set d = strftime_now('%d') if strftime_now is defined else '0' %}{{ d }}", "25"),
    ],
)
def test_template_sees_the_given_date_and_not_the_clock(clock, said):
    assert _text(clock + TURNS) == f"{said}7+8=="
    assert _text(clock + TURNS, date="2024-07-04") != _text(clock + TURNS)
    assert _check(clock + TURNS) == []


def test_option_of_the_settings_wins_over_the_date():
    options = {"date_string": "26 7 2024"}
    assert _text("{{ date_string }}=" + TURNS, chat_options=options) == "26 7 2024=7+8=="


@pytest.mark.parametrize("state", ["{{ range(9999) | random }}", "{{ lipsum() }}", "{{ [1, 2] | random }}"])
def test_template_that_draws_random_numbers_is_refused(state):
    with pytest.raises(ConfigError, match="draws random numbers"):
        _check(state + TURNS)


class _Counting:
    """A tokenizer whose template has a state of its own."""

    chat_template = TURNS

    def __init__(self):
        self.num_rendered = 0

    def apply_chat_template(self, conversation, **options):
        self.num_rendered += 1
        return [self.num_rendered]


def test_template_with_changing_state_is_refused():
    with pytest.raises(ConfigError, match="reads a clock or other changing state"):
        check_prompt(_Counting(), PromptTemplate(), PROBLEM, DAY)


def test_template_that_prints_an_address_is_refused():
    class Spelled(_Counting):
        def apply_chat_template(self, conversation, **options):
            return [7]

        def decode(self, tokens):
            return "<generator object sync_do_map at 0x7f27c40>"

    with pytest.raises(ConfigError, match="reads a memory address"):
        check_prompt(Spelled(), PromptTemplate(), PROBLEM, DAY)


@pytest.mark.parametrize(
    ("value", "template"),
    [
        (True, "{% if thinks is defined and thinks is false %}0{% endif %}"),
        (False, "{% if thinks is defined and thinks is false %}0{% endif %}"),
        ("12", "{{ thinks }}"),
        (5, "{{ thinks }}"),
    ],
)
def test_option_that_the_template_reads_is_accepted(value, template):
    assert _check(template + TURNS, chat_options={"thinks": value}) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"enable_thinkin": True},
            "chat_options.enable_thinkin has no effect .*did you mean enable_thinking",
        ),
        ({"enable_thinking": True, "effort": "low"}, "chat_options.effort .*its options are enable_thinking"),
    ],
)
def test_option_that_changes_nothing_is_refused(options, said):
    thinks = "{% if enable_thinking is defined and enable_thinking is false %}0{% endif %}"
    with pytest.raises(ConfigError, match=said):
        _check(thinks + TURNS, chat_options=options)


def test_option_of_a_template_without_options_is_refused():
    with pytest.raises(ConfigError, match="its options are none"):
        _check(TURNS, chat_options={"enable_thinking": False})


@pytest.mark.parametrize(
    ("chat_template", "fields", "what"),
    [
        (
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            {"system": "1"},
            "system",
        ),
        ("{{ messages[-1].content }}", {"examples": EXAMPLES}, "worked examples"),
        ("1+1=", {}, "question"),
    ],
)
def test_turn_that_the_template_leaves_out_is_refused(chat_template, fields, what):
    with pytest.raises(ConfigError, match=f"omits the {what}"):
        _check(chat_template, **fields)


def test_template_without_a_generation_prompt_is_a_warning_that_shows_the_end():
    [note] = _check("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert "adds no generation prompt" in note
    assert "'7+8='" in note


def test_prompt_without_a_chat_template_needs_no_check():
    assert _check(None, use_chat_template=False) == []
