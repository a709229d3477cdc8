"""Optimisers with less state: they descend as AdamW does, need what is promised, and survive a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from atrium.assemble.checks import check_offload, check_optimizer
from atrium.base.errors import ConfigError, MissingDependencyError
from atrium.cli import main
from atrium.config.compose import compose
from atrium.models.shape import ModelShape
from atrium.planning.memory import optimizer_bytes
from atrium.train.settings import AdamWSettings
from atrium.train.update import optimizer_kinds
from atrium.train.update.optimizer import PolicyOptimizer

SETTINGS = AdamWSettings(
    learning_rate=1e-3,
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    weight_decay=0.01,
    num_warmup_steps=0,
    schedule="constant",
    max_grad_norm=1.0,
)
DTYPES = {"adamw": torch.float32, "adamw_8bit": torch.float32, "adamw_bf16": torch.bfloat16}
KINDS = list(DTYPES)


def _model(kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Two matrices of at least 4,096 weights, which bitsandbytes keeps in 8 bits with tables that both use.
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 64), torch.nn.Linear(64, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.to(DTYPES[kind])


def _train(model, optimizer, steps):
    """Regression to fixed targets; the losses."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(32, 64, generator=generator)
    targets = torch.randn(32, 4, generator=generator)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = (model(inputs.to(next(model.parameters()).dtype)).float() - targets).square().mean()
        loss.backward()
        optimizer.clip_gradient()
        optimizer.step(step)
        losses.append(loss.item())
    return losses


def _weights(model):
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", ["adamw_8bit", "adamw_bf16"])
def test_the_loss_falls_as_with_adamw(kind):
    plain, small = _model("adamw"), _model(kind)
    expected = _train(plain, PolicyOptimizer(plain, SETTINGS, num_steps=100), range(1, 61))
    found = _train(
        small, PolicyOptimizer(small, SETTINGS.model_copy(update={"kind": kind}), num_steps=100), range(1, 61)
    )
    assert expected[-1] < 0.3 * expected[0]
    assert found[-1] == pytest.approx(expected[-1], abs=0.03 * expected[0])


def test_updates_below_the_last_bit_of_a_bfloat16_weight_still_count():
    model = torch.nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)  # the next bfloat16 below is 0.996
    rate = SETTINGS.model_copy(
        update={"kind": "adamw_bf16", "learning_rate": 1e-4, "weight_decay": 0.0, "max_grad_norm": None}
    )
    optimizer = PolicyOptimizer(model, rate, num_steps=100)
    for step in range(1, 101):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step(step)
    # A hundred steps of 1e-4, each an eightieth of what a weight of 1 can hold.
    assert model.weight.float().mean().item() == pytest.approx(0.99, abs=0.003)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_restores_the_state_bit_for_bit(kind, tmp_path):
    settings = SETTINGS.model_copy(update={"kind": kind})
    undisturbed, first = _model(kind), _model(kind)
    _train(undisturbed, PolicyOptimizer(undisturbed, settings, num_steps=100), range(1, 9))
    optimizer = PolicyOptimizer(first, settings, num_steps=100)
    _train(first, optimizer, range(1, 5))
    save_file({k: v.contiguous() for k, v in optimizer.state().items()}, tmp_path / "state.safetensors")

    second = _model(kind, seed=1)
    second.load_state_dict(first.state_dict())
    resumed = PolicyOptimizer(second, settings, num_steps=100)
    resumed.load_state(load_file(tmp_path / "state.safetensors"))
    assert resumed.state().keys() == optimizer.state().keys()
    assert all(value.equal(optimizer.state()[name]) for name, value in resumed.state().items())
    _train(second, resumed, range(5, 9))
    assert _weights(second).equal(_weights(undisturbed))
    assert not _weights(second).equal(_weights(first))


def test_state_in_main_memory_gives_the_updates_of_state_on_the_device():
    plain, moved = _model("adamw"), _model("adamw")
    expected = PolicyOptimizer(plain, SETTINGS, num_steps=100)
    found = PolicyOptimizer(moved, SETTINGS, offload=True, num_steps=100)
    assert _train(moved, found, range(1, 9)) == _train(plain, expected, range(1, 9))
    assert _weights(moved).equal(_weights(plain))
    assert found.state().keys() == expected.state().keys()
    assert all(value.equal(expected.state()[name]) for name, value in found.state().items())
    found.zero_grad()
    assert all(parameter.grad is None for parameter in moved.parameters())


def test_a_checkpoint_does_not_tell_where_the_state_lay():
    undisturbed, moved = _model("adamw"), _model("adamw")
    _train(undisturbed, PolicyOptimizer(undisturbed, SETTINGS, num_steps=100), range(1, 9))
    first = PolicyOptimizer(moved, SETTINGS, offload=True, num_steps=100)
    _train(moved, first, range(1, 4))
    second = PolicyOptimizer(moved, SETTINGS, num_steps=100)
    second.load_state(first.state())
    _train(moved, second, range(4, 6))
    third = PolicyOptimizer(moved, SETTINGS, offload=True, num_steps=100)
    third.load_state(second.state())
    _train(moved, third, range(6, 9))
    assert _weights(moved).equal(_weights(undisturbed))


def test_a_parameter_without_a_gradient_stays_as_it_is_where_the_state_is_in_main_memory():
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    optimizer = PolicyOptimizer(model, SETTINGS, offload=True, num_steps=100)
    before = _weights(model)
    for parameter in model[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(1)
    optimizer.zero_grad()
    for parameter in model[1].parameters():
        parameter.grad = torch.ones_like(parameter)
    moved = _weights(model)
    optimizer.step(2)
    size = _weights(model[0]).numel()
    assert moved[size:].equal(before[size:])
    assert (moved[:size] != before[:size]).all()
    assert _weights(model)[:size].equal(moved[:size])
    assert (_weights(model)[size:] != before[size:]).all()


def test_moving_state_is_refused_where_there_is_nothing_to_move():
    with pytest.raises(ConfigError, match=r"compute\.offload=true .*use compute.offload=false"):
        check_offload(compose(["compute.offload=true"]).compute)
    check_offload(compose([]).compute)


@pytest.mark.parametrize(("kind", "per_weight"), [("adamw", 8.0), ("adamw_8bit", 2.03), ("adamw_bf16", 6.0)])
def test_the_state_takes_as_many_bytes_per_weight_as_planned(kind, per_weight):
    model = torch.nn.Linear(512, 512, bias=False).to(DTYPES[kind])
    optimizer = PolicyOptimizer(model, SETTINGS.model_copy(update={"kind": kind}), num_steps=100)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step(1)
    measured = sum(
        value.numel() * value.element_size()
        for name, value in optimizer.state().items()
        if "qmap" not in name and not name.endswith("/step")
    )
    assert measured / model.weight.numel() == pytest.approx(per_weight, abs=0.01)
    shape = dict.fromkeys(ModelShape.__dataclass_fields__, 1)
    planned = ModelShape(**{**shape, "model_type": "qwen3", "num_parameters": 512 * 512})
    assert optimizer_bytes(planned, kind) == pytest.approx(measured, rel=1e-3)


@pytest.mark.parametrize("kind", ["adamw_8bit", "adamw_bf16"])
def test_a_missing_package_is_one_line_that_names_it(kind, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(optimizer_kinds.importlib, "import_module", missing)
    with pytest.raises(MissingDependencyError, match="make install EXTRAS=optimizers") as caught:
        PolicyOptimizer(_model(kind), SETTINGS.model_copy(update={"kind": kind}), num_steps=100)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_found_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="adamw_8bit requires bitsandbytes"):
        check_optimizer("adamw_8bit")
    check_optimizer("adamw")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer=adamw_bf16"], "compute.dtype=float32; use compute.dtype=bfloat16"),
        (["optimizer=adamw_8bit", "compute.num_processes=2"], "use optimizer=adamw"),
        (["optimizer=adamw_8bit", "compute.offload=true"], "compute.offload=true.* use optimizer=adamw"),
        (
            ["optimizer=adamw_bf16", "compute.dtype=bfloat16", "model.lora={rank: 4, alpha: 8}"],
            "model.lora=null",
        ),
    ],
)
def test_what_a_kind_cannot_be_combined_with_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said):
        compose(overrides)


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [["optimizer=adamw_8bit"], ["optimizer=adamw_bf16", "compute.dtype=bfloat16"]],
    ids=["8bit", "bf16"],
)
def test_a_run_that_is_continued_equals_an_undisturbed_one(overrides, tmp_path):
    common = ["debug=tiny_steps", "tracking=none", "tracking.figures=false", *overrides]
    assert main(["train", *common, f"runs_dir={tmp_path / 'a'}", "num_steps=4"]) == 0
    assert main(["train", *common, f"runs_dir={tmp_path / 'b'}", "num_steps=2"]) == 0
    (half,) = (tmp_path / "b").glob("*/*/config.json")
    assert main(["train", "--resume", str(half.parent), "num_steps=4"]) == 0
    found = []
    for folder in ("a", "b"):
        (path,) = (tmp_path / folder).glob("*/*/checkpoints/step-000004")
        found.append(
            load_file(path / "policy" / "model.safetensors") | load_file(path / "optimizer.safetensors")
        )
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert value.equal(found[1][name]), name
        assert math.isfinite(float(value.float().sum()))
