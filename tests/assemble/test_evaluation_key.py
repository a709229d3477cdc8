"""The cache key of the evaluation before training: every part of it changes it, and nothing else does."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from tests.saved_policy import save_policy

from atrium.assemble import evaluation_key as keys
from atrium.assemble.references import Loading
from atrium.assemble.task import build_task, evaluated_benchmark
from atrium.base import plugins
from atrium.config.compose import compose
from atrium.data.prompts import prompt_encoder
from atrium.models.digests import weights_digest
from atrium.models.policy import load_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy

SMALL = TinySettings(hidden_size=16, num_layers=1, num_heads=2, num_key_value_heads=1, head_dim=8)
BASE = ("debug=tiny_steps", "dataset.num_validation=4")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("key") / "policy"
    save_policy(build_tiny_policy(SMALL, seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def key(saved):
    return _key(saved)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(saved, tmp_path / "policy")


def _key(folder, *overrides, change=lambda benchmark: benchmark):
    config = compose([*BASE, *overrides])
    policy = load_policy(folder, dtype=torch.float32, device="cpu")
    validation = build_task(config, Loading(cache_dir=folder, log=lambda line: None)).validation
    return keys.evaluation_key(
        keys.policy_key(config, policy, weights_digest(policy.weights())),
        change(evaluated_benchmark(validation, config)),
        validation.verifier or config.grader,
        prompt_encoder(policy.tokenizer, config.model.prompt),
        config.evaluation.seed,
    )


def _edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _change_weights(folder):
    policy = load_policy(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        next(policy.model.parameters())[0, 0] += 1e-3
    (folder / "model.safetensors").unlink()
    policy.model.save_pretrained(folder)


def _change_template(folder):
    path = folder / "chat_template.jinja"
    path.write_text("Hello" + path.read_text())


def _change_decoding(folder):
    """`7` is decoded as `x`; prompts, which name it by its id, stay as they are."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["decoder"] = {"type": "Replace", "pattern": {"String": "7"}, "content": "x"}
    path.write_text(json.dumps(content))


def _change_rotation(folder):
    _edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 99.0})


@pytest.mark.parametrize(
    "damage",
    [
        _change_weights,
        lambda folder: _edit_json(folder / "config.json", eos_token_id=5),
        lambda folder: _edit_json(folder / "generation_config.json", eos_token_id=[2, 7]),
        _change_rotation,
        _change_template,
        _change_decoding,
    ],
    ids=["weights", "eos", "generation-config-eos", "rope", "chat-template", "decoder"],
)
def test_changed_model_file_is_a_cache_miss(folder, key, damage):
    damage(folder)
    assert _key(folder) != key


@pytest.mark.parametrize(
    "override",
    [
        "model.thinking=true",
        "model.prompt={user: 'Question: {question}'}",
        "model.prompt={stop: ['=']}",
        "grader=exact",
        "grader.timeout_s=1",
        "grader.answer=last_number",
        "rollout.unit_samples=8",
        "compute.dtype=bfloat16",
        "evaluation.temperature=0.5",
        "evaluation.top_p=0.9",
        "evaluation.max_new_tokens=9",
        "evaluation.num_samples=3",
        "evaluation.seed=1",
        "dataset.seed=1",
        "dataset.max_operands=3",
    ],
)
def test_setting_that_changes_answers_or_verdicts_is_a_cache_miss(saved, key, override):
    assert _key(saved, override) != key


@pytest.mark.parametrize(
    "override",
    [
        "runs_dir=elsewhere",
        "experiment_name=other",
        "seed=5",
        "compute.num_threads=1",
        "compute.packing=false",
        "compute.micro_batch_tokens=999",
        "algorithm=grpo",
        "divergence=ratio",
        "optimizer.learning_rate=0.1",
        "num_steps=50",
        "reward=format",
        "rollout.temperature=0.5",
        "rollout.num_prompts=8",
        "rollout.max_mismatch=0.5",
        "rollout.max_new_tokens=32 evaluation.max_new_tokens=64",
        "evaluation.every_num_steps=3",
        "evaluation.pass_at=[1]",
        "grader.num_workers=1",
        "tracking.figures=false",
        "checkpoint.keep_last=1",
        "dataset.num_train=32",
    ],
)
def test_setting_that_changes_no_answer_is_a_cache_hit(saved, key, override):
    assert _key(saved, *override.split()) == key


def test_folder_of_the_model_is_no_part_of_the_key(folder, key):
    assert _key(folder) == key


@pytest.mark.parametrize("change", [{"require_stop": False}, {"name": "other"}], ids=str)
def test_changed_benchmark_is_a_cache_miss(saved, key, change):
    assert _key(saved, change=lambda benchmark: replace(benchmark, **change)) != key


@pytest.mark.parametrize("field", ["answer", "metadata"])
def test_changed_problem_is_a_cache_miss(saved, field):
    def change(benchmark):
        value = {"answer": "5", "metadata": {"grader": "exact"}}[field]
        return replace(benchmark, problems=(replace(benchmark.problems[0], **{field: value}),))

    def keep(benchmark):
        return replace(benchmark, problems=benchmark.problems[:1])

    assert _key(saved, change=change) != _key(saved, change=keep)


def test_changed_grader_version_plugin_or_code_is_a_cache_miss(saved, key, monkeypatch):
    found = {key}
    monkeypatch.setattr(keys, "grader_version", lambda verifier: "math, atrium 99")
    found.add(_key(saved))
    plugin = plugins.Plugin(name="mine.py", sha256="ab")
    monkeypatch.setattr(plugins, "loaded", lambda: (plugin,))
    found.add(_key(saved))
    monkeypatch.setattr(keys, "_code_digest", lambda: "other code")
    found.add(_key(saved))
    assert len(found) == 4
