from __future__ import annotations

import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from atrium.base.errors import ConfigError
from atrium.base.records import Problem
from atrium.data.chat_templates import MAX_CHARS
from atrium.data.prompts import (
    PROMPT_TEMPLATES,
    Prompt,
    PromptTemplate,
    encode_prompt,
    find_prompt_template,
    prompt_encoder,
)
from atrium.models.tiny import build_tokenizer

PROBLEM = Problem(problem_id="p", question="7+8=", answer="15")
SPELLED = (
    "{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '(no thought)' }}{% endif %}"
)


@pytest.fixture
def tokenizer():
    return build_tokenizer()


class SpellingTokenizer:
    """Renders chats as text and encodes a text as its code points, so that prompts can be read."""

    def __init__(self, chat_template):
        self.chat_template = chat_template
        self._renderer = build_tokenizer()

    def encode(self, text):
        return [ord(character) for character in text]

    def apply_chat_template(self, conversation, *, tokenize, return_dict, **options):
        assert tokenize
        assert not return_dict
        return self.encode(
            self._renderer.apply_chat_template(
                conversation, chat_template=self.chat_template, tokenize=False, **options
            )
        )


def _read(template):
    prompt = encode_prompt(SpellingTokenizer(SPELLED), PROBLEM, template)
    return "".join(chr(token_id) for token_id in prompt)


def test_the_built_in_prompt_is_the_question_in_its_turn_markers(tokenizer):
    prompt = encode_prompt(tokenizer, PROBLEM, PROMPT_TEMPLATES["question"])
    assert prompt.dtype == np.int32
    assert tokenizer.decode(prompt) == "<q>7+8=<a>"


def test_instruction_and_system_turn_stand_where_the_named_templates_put_them():
    boxed = "Please reason step by step, and put your final answer within \\boxed{}."
    helpful = "[system]You are a helpful assistant."
    assert _read(PROMPT_TEMPLATES["qwen_boxed"]) == f"[system]{boxed}[user]7+8=[assistant]"
    assert _read(PROMPT_TEMPLATES["qwen_user_boxed"]) == f"{helpful}[user]7+8=\n{boxed}[assistant]"
    assert _read(PROMPT_TEMPLATES["user_boxed"]) == f"[user]7+8=\n\n{boxed}[assistant]"
    assert _read(PROMPT_TEMPLATES["base_boxed"]) == f"Question:\n7+8=\n{boxed}\nAnswer:\n"
    assert _read(PROMPT_TEMPLATES["bare"]) == "7+8="
    arena = "Put your final answer within \\boxed{}."
    assert _read(PROMPT_TEMPLATES["matharena"]) == f"[user]{arena}\n\n7+8=[assistant]"
    aime = "The answer is an integer between 0 and 999 inclusive."
    assert _read(PROMPT_TEMPLATES["matharena_aime"]) == f"[user]{arena}\n{aime}\n\n7+8=[assistant]"


def test_a_problems_system_turn_precedes_the_templates_and_earlier_turns_precede_the_question():
    boxed = "Please reason step by step, and put your final answer within \\boxed{}."
    earlier = (("user", "1+1="), ("assistant", "2"))
    for turns, template, expected in (
        ((("system", "Be brief."),), "question", "[system]Be brief.[user]7+8=[assistant]"),
        ((("system", "Be brief."),), "qwen_boxed", f"[system]Be brief.\n\n{boxed}[user]7+8=[assistant]"),
        ((("system", boxed),), "qwen_boxed", f"[system]{boxed}[user]7+8=[assistant]"),
        (earlier, "user_boxed", f"[user]1+1=[assistant]2[user]7+8=\n\n{boxed}[assistant]"),
    ):
        problem = replace(PROBLEM, turns=turns)
        prompt = encode_prompt(SpellingTokenizer(SPELLED), problem, PROMPT_TEMPLATES[template])
        assert "".join(map(chr, prompt)) == expected
    encode = prompt_encoder(SpellingTokenizer(SPELLED), PROMPT_TEMPLATES["question"])
    assert len(encode(replace(PROBLEM, turns=earlier))) > len(encode(PROBLEM))


def test_turns_before_a_plain_text_prompt_are_refused_with_the_way_out():
    problem = replace(PROBLEM, turns=(("system", "Be brief."),))
    with pytest.raises(
        ConfigError,
        match=r"'bare' is plain text, but problem 'p' has a turn before its question \(role system\).*drop",
    ):
        encode_prompt(SpellingTokenizer(SPELLED), problem, PROMPT_TEMPLATES["bare"])


def test_every_template_that_asks_for_an_answer_asks_for_the_box_that_the_grader_reads():
    without = {name for name, template in PROMPT_TEMPLATES.items() if "\\boxed{" not in _asked(template)}
    assert without == {"question", "bare"}


def _asked(template):
    return (template.system or "") + template.user


def test_a_chat_template_without_a_system_turn_is_named_with_the_way_out():
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    with pytest.raises(ConfigError, match=r"'qwen_boxed': .*no system role.*user_boxed"):
        encode_prompt(SpellingTokenizer(refuses + SPELLED), PROBLEM, PROMPT_TEMPLATES["qwen_boxed"])
    assert encode_prompt(SpellingTokenizer(refuses + SPELLED), PROBLEM, PROMPT_TEMPLATES["dapo"]).size


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
            "more than 1,000,000",
        ),
        ("{{ 'a' * 100000000000 }}", "MemoryError"),
        ("{{ 10 ** 10000000000 }}", "a power"),
        ("{% for i in range(1000000000) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ nothing.here.deep }}", "undefined"),
        ("{% for %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("x" * (MAX_CHARS + 1), "1,048,577 characters"),
    ],
)
def test_a_hostile_chat_template_is_one_line(hostile, said):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    encode = prompt_encoder(SpellingTokenizer(hostile), PROMPT_TEMPLATES["question"])
    with pytest.raises(ConfigError, match=r"^prompt template 'question': .*chat template") as refused:
        encode(PROBLEM)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sys.gettrace() is None
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_stars_in_a_chat_templates_text_are_no_power():
    text = "{% macro say(a) %}{{ '**' + a }}**{% endmacro %}{{ say( ** {'a': '2 ** 3'}) }}"
    prompt = encode_prompt(SpellingTokenizer(text), PROBLEM, PROMPT_TEMPLATES["question"])
    assert "".join(map(chr, prompt)) == "**2 ** 3**"


def test_chat_options_reach_the_chat_template():
    assert _read(PROMPT_TEMPLATES["qwen3_direct"]).endswith("[assistant](no thought)")
    assert _read(PROMPT_TEMPLATES["qwen3_thinking"]).endswith("[assistant]")


def test_braces_in_the_question_and_the_template_are_taken_literally():
    template = PromptTemplate(name="t", user="{answer} \\boxed{} {question}", use_chat_template=False)
    problem = replace(PROBLEM, question="{x} {question}")
    prompt = encode_prompt(SpellingTokenizer(None), problem, template)
    assert "".join(map(chr, prompt)) == "{answer} \\boxed{} {x} {question}"


def test_the_hash_covers_all_but_the_name():
    template = PromptTemplate(name="t")
    changes = [
        {"user": "{question}?"},
        {"system": ""},
        {"use_chat_template": False},
        {"chat_options": {"enable_thinking": True}},
        {"stop": ("\n",)},
    ]
    hashes = {template.model_copy(update=change).content_hash for change in changes}
    assert len(hashes | {template.content_hash}) == 6
    assert template.model_copy(update={"name": "u"}).content_hash == template.content_hash


EXAMPLES = ({"question": "2+3=", "answer": "5."}, {"question": "4+4=", "answer": "8."})


def test_worked_examples_are_turns_of_a_chat_or_plain_text_before_the_question():
    chat = PromptTemplate(examples=EXAMPLES, user="{question}?", system="Add.")
    assert _read(chat) == (
        "[system]Add.[user]2+3=?[assistant]5.[user]4+4=?[assistant]8.[user]7+8=?[assistant]"
    )
    plain = PromptTemplate(examples=EXAMPLES, user="Q: {question} A: ", use_chat_template=False)
    assert _read(plain) == "Q: 2+3= A: 5.\n\nQ: 4+4= A: 8.\n\nQ: 7+8= A: "


def test_settings_name_a_template_or_say_what_one_of_their_own_is():
    named, own = (TypeAdapter(Prompt).validate_python(value) for value in ("bare", {"user": "Q: {question}"}))
    assert named is PROMPT_TEMPLATES["bare"]
    assert own.name == "own"
    recorded = [TypeAdapter(Prompt).dump_python(one, mode="json") for one in (named, own)]
    assert recorded == ["bare", {"user": "Q: {question}"}]


def test_every_template_in_the_table_has_its_own_name_and_content():
    assert all(template.name == name for name, template in PROMPT_TEMPLATES.items())
    assert len({template.content_hash for template in PROMPT_TEMPLATES.values()}) == len(PROMPT_TEMPLATES)


@pytest.mark.parametrize("user", ["no place", "{question} {question}"])
def test_a_template_needs_exactly_one_place_for_the_question(user):
    with pytest.raises(ValueError, match="exactly once"):
        PromptTemplate(name="t", user=user)


def test_a_system_turn_without_a_chat_template_is_refused_as_idle():
    with pytest.raises(ValueError, match="no effect without a chat template"):
        PromptTemplate(name="t", system="s", use_chat_template=False)


def test_a_tokenizer_without_a_chat_template_is_named_with_the_way_out():
    with pytest.raises(ConfigError, match="has none; choose another prompt template: r1, base_boxed, bare"):
        encode_prompt(SpellingTokenizer(None), PROBLEM, PROMPT_TEMPLATES["qwen_boxed"])


def test_an_unknown_template_is_answered_with_the_nearest_name():
    assert find_prompt_template("question").name == "question"
    with pytest.raises(ValueError, match="did you mean 'qwen_boxed'"):
        find_prompt_template("qwen_boxd")
