"""A training step on two and four ranks is that of one process: weights, gradients, metrics and traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.ranks.conftest import run_ranks
from tests.ranks.updates import CASES, compose_cases, run_case

from atrium.config.compose import from_json
from atrium.train.ranks.ranks import Ranks

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    # torch's compiler reads the gradient of an activation and instantiates autograd functions.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

EXACT = 1e-12
"""Float64 sums of a few thousand terms of about 1, in another order: 1e-16 times their number."""
WEIGHTS = {"gpt2": EXACT, "lora": 1e-8, "adamw_bf16": 1e-3}
"""Largest difference of a weight: of float64, of adapters whose norms and losses are float32, and of bfloat16
weights of at most 0.2 (two of their last bits)."""
METRICS = {"gpt2": 1e-9, "lora": 1e-6, "adamw_bf16": 0.02}
"""The same for a metric, relative to it."""


@pytest.fixture(scope="module")
def configs():
    """The configuration of every case, as JSON."""
    return compose_cases()


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.release), 4])
def ranks_found(request, configs, tmp_path_factory):
    """What so many ranks found for every case."""
    folder = tmp_path_factory.mktemp(f"ranks-{request.param}")
    (folder / "configs.json").write_text(json.dumps(configs), encoding="utf-8")
    codes, said = run_ranks(request.param, Path(__file__).with_name("updates.py"), folder)
    assert codes == [0] * request.param, said[-4000:]
    return folder, json.loads((folder / "records.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def alone(configs):
    """What one process finds, case by case."""
    found = {}

    def run(name):
        if name not in found:
            record, tensors = run_case(CASES[name], from_json(configs[name]), Ranks())
            found[name] = json.loads(json.dumps(record)), tensors
        return found[name]

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_step_on_several_ranks_is_that_of_one_process(name, ranks_found, alone):
    folder, records = ranks_found
    record, tensors = alone(name)
    found, found_tensors = records[name], load_file(folder / f"{name}.safetensors")
    assert found["num_updates"] == record["num_updates"]
    assert found["told"] == record["told"]
    trained = CASES[name].trained
    rounding = METRICS[trained]
    for key in ("weights", "change"):
        assert (found_tensors[key] - tensors[key]).abs().max() < WEIGHTS[trained], key
    if trained != "adamw_bf16":
        assert found["histogram"] == record["histogram"]
    assert found_tensors["clipped"].equal(tensors["clipped"])
    for key in ("ratio", "entropy"):
        assert torch.allclose(
            found_tensors[key], tensors[key], rtol=max(1e-6, rounding), atol=max(1e-6, rounding)
        ), key
    assert found["metrics"].keys() == record["metrics"].keys()
    for key, value in record["metrics"].items():
        if key in ("optimizer/num_computed_positions", "optimizer/padding_frac"):
            continue  # a prompt that two ranks need is computed by both
        assert found["metrics"][key] == pytest.approx(value, rel=rounding, abs=rounding / 1000), key


def test_every_case_moves_the_weights_and_the_one_that_is_not_finite_skips_an_update(alone):
    assert all(alone(name)[1]["change"].any() for name in CASES)
    assert {name for name in CASES if alone(name)[0]["told"]} == {"not finite"}
