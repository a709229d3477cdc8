"""The schedule's values, clipping, and an optimiser state that survives a round trip bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from atrium.base.errors import CheckpointError
from atrium.train.settings import AdamWSettings, learning_rate_at
from atrium.train.update.optimizer import PolicyOptimizer

SETTINGS = AdamWSettings(
    learning_rate=0.1,
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    weight_decay=0.1,
    num_warmup_steps=4,
    schedule="constant",
    max_grad_norm=1.0,
)


def _model(seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def _give_gradient(model, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def _train(model, optimizer, steps):
    for step in steps:
        _give_gradient(model, step)
        optimizer.clip_gradient()
        optimizer.step(step)


def _rates(**changes):
    settings = SETTINGS.model_copy(update=changes)
    return [learning_rate_at(step, settings, 14) / settings.learning_rate for step in range(1, 16)]


def test_the_warm_up_rises_linearly_and_constant_stays():
    assert _rates() == pytest.approx([0.25, 0.5, 0.75] + 12 * [1.0])


def test_without_a_warm_up_the_first_step_has_the_full_rate():
    assert _rates(num_warmup_steps=0) == pytest.approx(15 * [1.0])


@pytest.mark.parametrize(
    ("schedule", "decay"),
    [("linear", lambda done: 1 - done), ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2)],
)
def test_a_decay_begins_after_the_warm_up_and_ends_one_step_after_the_last(schedule, decay):
    rates = _rates(schedule=schedule)
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4:] == pytest.approx([decay(n / 10) for n in range(11)])
    assert rates[13] > 0.0
    assert rates[14] == pytest.approx(0.0, abs=1e-15)


def test_the_rate_of_the_step_is_used_and_reported():
    model = _model()
    optimizer = PolicyOptimizer(model, SETTINGS.model_copy(update={"weight_decay": 0.0}), num_steps=14)
    before = model[0].weight.detach().clone()
    _give_gradient(model, 1)
    assert optimizer.step(2) == pytest.approx(0.05)
    moved = (model[0].weight - before).abs()
    assert moved.tolist() == [[pytest.approx(0.05, rel=1e-4)] * 3] * 5  # Adam's first step is the rate


def test_the_gradient_is_scaled_down_to_the_limit_and_its_norm_reported():
    model = _model()
    optimizer = PolicyOptimizer(model, SETTINGS, num_steps=14)
    _give_gradient(model, 1, scale=10.0)
    raw = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert optimizer.clip_gradient() == pytest.approx(float(raw.norm()))
    clipped = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert clipped.tolist() == pytest.approx((raw / raw.norm()).tolist(), rel=1e-4)


@pytest.mark.parametrize(("limit", "scale"), [(None, 10.0), (1.0, 1e-3)])
def test_a_gradient_within_the_limit_is_left_as_it_is(limit, scale):
    model = _model()
    optimizer = PolicyOptimizer(model, SETTINGS.model_copy(update={"max_grad_norm": limit}), num_steps=14)
    _give_gradient(model, 1, scale=scale)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.clip_gradient()
    assert all(a.equal(b.grad) for a, b in zip(before, model.parameters(), strict=True))


def test_zero_grad_forgets_the_gradient():
    model = _model()
    optimizer = PolicyOptimizer(model, SETTINGS, num_steps=14)
    _give_gradient(model, 1)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_optimizer_continues_from_its_state_bit_for_bit():
    undisturbed, first = _model(), _model()
    _train(undisturbed, PolicyOptimizer(undisturbed, SETTINGS, num_steps=14), range(1, 7))
    optimizer = PolicyOptimizer(first, SETTINGS, num_steps=14)
    _train(first, optimizer, range(1, 4))
    state = {name: value.clone() for name, value in optimizer.state().items()}
    assert "0.weight/exp_avg" in state

    second = _model(seed=1)
    second.load_state_dict(first.state_dict())
    resumed = PolicyOptimizer(second, SETTINGS, num_steps=14)
    resumed.load_state(state)
    assert all(value.equal(state[name]) for name, value in resumed.state().items())
    _train(second, resumed, range(4, 7))
    for name, value in undisturbed.state_dict().items():
        assert value.equal(second.state_dict()[name]), name


def test_a_loaded_state_is_a_copy():
    model = _model()
    optimizer = PolicyOptimizer(model, SETTINGS, num_steps=14)
    _train(model, optimizer, [1])
    state = {name: value.clone() for name, value in optimizer.state().items()}
    kept = {name: value.clone() for name, value in state.items()}
    other = PolicyOptimizer(model, SETTINGS, num_steps=14)
    other.load_state(state)
    _train(model, other, [2])
    assert all(value.equal(kept[name]) for name, value in state.items())


def test_a_new_optimizer_has_no_state():
    assert PolicyOptimizer(_model(), SETTINGS, num_steps=14).state() == {}


def test_parameters_without_a_gradient_are_left_alone():
    model = _model()
    model[0].requires_grad_(False)
    optimizer = PolicyOptimizer(model, SETTINGS, num_steps=14)
    _give_gradient(model, 1)
    before = model[0].weight.clone()
    optimizer.step(1)
    assert model[0].weight.equal(before)
    assert {name.split("/")[0] for name in optimizer.state()} == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("key", "shape", "said"),
    [
        ("2.weight/exp_avg", (5, 3), "2.weight, which the model does not have"),
        ("0.weight/exp_avg", (3, 5), r"has shape \(3, 5\), expected \(5, 3\)"),
    ],
)
def test_the_state_of_another_model_is_refused(key, shape, said):
    with pytest.raises(CheckpointError, match=said):
        PolicyOptimizer(_model(), SETTINGS, num_steps=14).load_state({key: torch.zeros(shape)})
