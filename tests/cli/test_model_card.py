"""What an exported policy says of itself: its lines prompt it exactly as training did."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from tests.run_records import group_of_two
from tests.saved_policy import save_policy
from transformers.utils import chat_template_utils

from atrium.assemble.model_card import example_of, usage_lines, write_card
from atrium.base.records import Problem
from atrium.config.compose import compose
from atrium.data.prompts import encode_prompt
from atrium.models.policy import load_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import CHAT_TEMPLATE, build_tiny_policy
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import write_rollouts

CLOCK = "{{ '<q>' + date_string[:2] + strftime_now('%Y' ~ '%m') }}" + CHAT_TEMPLATE
EXAMPLES = "examples:[{question:'1+2=',answer:'1+2=3;'}]"
SYSTEM = {"system": "2*3"}
PROMPTS = [
    (CHAT_TEMPLATE, ["model.prompt=question"], {}),
    (CHAT_TEMPLATE, ["model.prompt=question"], SYSTEM),
    (CHAT_TEMPLATE, [f"model.prompt={{user:'{{question}}',system:'1+1',{EXAMPLES}}}"], {}),
    (
        CHAT_TEMPLATE,
        [f"model.prompt={{user:'{{question}}=',system:'1+1',{EXAMPLES}}}"],
        SYSTEM | {"user": "3-1", "assistant": "2;"},
    ),
    (CHAT_TEMPLATE, ["model.prompt={user:'{question}=',stop:[';','=1']}"], {}),
    (CLOCK, ["model.prompt=question", "model.date=2024-07-26"], SYSTEM),
    (
        CHAT_TEMPLATE,
        [f"model.prompt={{user:'{{question}}',use_chat_template:false,{EXAMPLES},stop:['+']}}"],
        {},
    ),
]


@pytest.mark.parametrize(("chat_template", "overrides", "turns"), PROMPTS)
def test_printed_lines_prompt_the_policy_as_training_does(
    chat_template, overrides, turns, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(chat_template_utils, "datetime", chat_template_utils.datetime)  # restored at the end
    config = compose([*overrides, "rollout.max_new_tokens=3", "model.lora=null"])
    built = build_tiny_policy(TinySettings(hidden_size=16, num_layers=1, num_heads=2), seed=0)
    built.tokenizer.chat_template = chat_template
    target = tmp_path / "export"
    save_policy(built, target)
    folder = RunFolder.create(tmp_path, "quickstart", "grpo", 0)
    record = config.model_dump(mode="json")
    write_card(target, folder, record, step=0)
    problem = Problem(problem_id="0", question="9+8-4=", answer="13", turns=tuple(turns.items()))
    group = group_of_two(problem, np.random.default_rng(0), num_tokens=2, text="13")
    write_rollouts(folder.rollouts_path(1), 1, [group], ())
    lines = usage_lines(record, target, str(target), example_of(folder))
    assert len(lines) == 4
    found = {}
    exec("\n".join(lines), found)
    tokenizer = load_policy(target, dtype=torch.float32, device="cpu").tokenizer
    prompt = encode_prompt(tokenizer, problem, config.model.prompt, config.model.date)
    assert found["prompt"].tolist() == [prompt.tolist()]
    assert capsys.readouterr().out
    assert all(re.escape(stop).replace("\\", "\\\\") in lines[3] for stop in config.model.prompt.stop)
    record["model"] |= {"kind": "hub", "weights": "pretrained"}
    stops = usage_lines(record, target, str(target), problem)[3]
    assert ("stop_strings=" in stops) == bool(config.model.prompt.stop)


@pytest.mark.parametrize(
    ("overrides", "question", "has_note"),
    [([], "7+8-4=", False), (["dataset=file", "dataset.source=d.jsonl"], "What is 7 + 8 - 4?", True)],
)
def test_lines_of_a_run_without_readable_samples_name_the_turns_that_may_be_missing(
    overrides, question, has_note, tmp_path
):
    folder = RunFolder.create(tmp_path, "quickstart", "grpo", 0)
    folder.rollouts_dir.mkdir(exist_ok=True)
    folder.rollouts_path(1).write_bytes(b"damaged")
    assert example_of(folder) is None
    record = compose([*overrides, "benchmark=math500"]).model_dump(mode="json")
    lines = usage_lines(record, tmp_path, str(tmp_path), None)
    assert question in lines[-2]
    notes = [line for line in lines if line.startswith("# ") and "system turn" in line]
    assert len(notes) == has_note
