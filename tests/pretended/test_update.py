"""On a pretended GPU: the update of every method, its gradient, and how often the host waits in it."""

from __future__ import annotations

import math

import pytest
import torch
from tests.method.conftest import PRESETS, composed
from tests.pretended.cuda import pretended_cuda
from tests.train.conftest import OPTIMIZER, random_groups, run_step, tiny_policy

from atrium.base.metrics import FORWARD_S, GRAD_NORM, UPDATE_S
from atrium.engines.collate import collate
from atrium.train.update.divergence_meter import meter_of
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer
from atrium.train.update.update import UpdateSettings
from atrium.train.update.updater import PolicyUpdater

VARIED = {
    "atr", "grpo_kl_corrected", "gspo", "gvpo", "rpg_ufkl", "dapo", "bapo", "kl_cov", "spo", "cispo", "gmpo",
    "asymre", "vespo", "fipo",
}  # fmt: skip
"""Methods whose parts differ most; those of the others are combinations of them."""
METHODS = [pytest.param(name, marks=() if name in VARIED else pytest.mark.full, id=name) for name in PRESETS]
MOST_WAITS = 3
"""Per micro-batch, those of the whole step among them."""


def _prepared(name, device, *, recomputes=False, num_minibatches=2):
    """A model, what updates it by a method, and a batch for it."""
    method = composed(name)
    model = tiny_policy().model.to(device)
    bfloat16 = {"temperature": 1.0, "autocast_dtype": torch.bfloat16, "recomputes": recomputes}
    updater = PolicyUpdater(
        objective=method.objective,
        forward=PolicyForward(model, meter=meter_of(method.divergence), **bfloat16),
        optimizer=PolicyOptimizer(model, OPTIMIZER, num_steps=10),
        settings=UpdateSettings(
            num_minibatches=num_minibatches,
            num_epochs=1,
            micro_batch_tokens=30,
            behavior_logprobs="recompute",
            seed=0,
        ),
        reference_forward=PolicyForward(tiny_policy(seed=1).model.to(device), **bfloat16),
    )
    rows = collate(random_groups(), trains=[True] * 4, pad_token_id=0, seed=0, device=device)
    return model, updater, rows


def test_the_varied_methods_are_shipped():
    assert set(PRESETS) >= VARIED


@pytest.mark.parametrize("name", METHODS)
def test_every_method_updates_on_a_gpu_whose_host_seldom_waits(name):
    with pretended_cuda() as gpu:
        _, updater, rows = _prepared(name, "cuda")
        gpu.waits.clear()
        _, measured = run_step(updater, rows)
        assert math.isfinite(measured[GRAD_NORM.name])
        assert 0.0 < measured[FORWARD_S.name] < measured[UPDATE_S.name]
        # The model has one layer: each pass attends once.
        assert gpu.num_attentions > 5
        assert gpu.waits.total() <= MOST_WAITS * gpu.num_attentions, gpu.waits


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("name", ["atr", "gvpo", "rpg_ufkl"])
def test_an_update_on_a_gpu_is_that_of_a_cpu_to_rounding(name, recomputes):
    expected = _change(name, "cpu")
    with pretended_cuda() as gpu:
        found = _change(name, "cuda", recomputes=recomputes).cpu()
        assert gpu.num_attentions > 0
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_what_a_gpu_refuses_is_refused():
    with pretended_cuda() as gpu:
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            here + there
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there[:2] * 2).device == torch.device("cuda:0")
        assert not gpu.waits
        assert there.cpu().device.type == "cpu"
        assert here.to("cuda").is_cuda
        assert there[there > 0].sum().item() == 3.0
        assert gpu.waits.total() == 4
        assert here.pin_memory().to("cuda", non_blocking=True).is_cuda
        assert gpu.waits.total() == 4


def _change(name, device, *, recomputes=False):
    """What the only update of a step changes in the weights."""
    model, updater, rows = _prepared(name, device, recomputes=recomputes, num_minibatches=1)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    run_step(updater, rows)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before


def test_a_tensor_without_values_is_told_from_one_on_a_gpu():
    # transformers initialises what lies nowhere once it is placed; taken for placed, it would stay as found.
    with pretended_cuda(), torch.device("meta"):
        assert torch.ones(2).device.type == "meta"
