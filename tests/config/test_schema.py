"""`conf/schema.json`: every shipped YAML file satisfies it, and mistakes do not."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from atrium.config.files import parse_yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((REPOSITORY / "conf" / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def test_every_shipped_file_satisfies_the_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    paths = [path for folder in ("conf", "sweeps") for path in sorted((REPOSITORY / folder).rglob("*.yaml"))]
    assert len(paths) > 250
    for path in paths:
        error = jsonschema.exceptions.best_match(
            VALIDATOR.iter_errors(parse_yaml(path.read_text(encoding="utf-8")))
        )
        assert error is None, f"{path}: {error.json_path}: {error.message}"


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [grpo, _self_]\nname: mine\nlabel: Mine\nreduction: {kind: token_mean}",
        "defaults: [stress]\nevaluation: {num_samples: '${rollout.group_size}'}\nseed: 3",
        "defaults: [kl3]\ndelta: 0.05",
        "defaults: [auto]\nmicro_batch_tokens: auto\nnum_threads: 4",
        "question: Which rate?\nspace: {optimizer.learning_rate: {low: 1e-5, high: 1e-3}}\nseeds: [0, 1]",
    ],
)
def test_files_of_ones_own_satisfy_the_schema(text):
    assert VALIDATOR.is_valid(parse_yaml(text))


@pytest.mark.parametrize(
    "text",
    [
        "num_step: 3",
        "optimizer: {learning_rate: -1}",
        "optimizer: {learning_rate: fast}",
        "compute: {device: gpu}",
        "kind: kl3\ndleta: 1",
        "kind: kl3\ndelta: '0.1'",
        "kind: ratio\ndelta: 0.1\nepsilon_low: 0.2",
        "name: mine\nadvantage: {scale: nothing}",
        "num_prompts: auto",
        "space: {}\nsedes: [1]",
        "- a list",
    ],
)
def test_typo_wrong_type_range_and_foreign_setting_are_refused(text):
    assert not VALIDATOR.is_valid(parse_yaml(text))
