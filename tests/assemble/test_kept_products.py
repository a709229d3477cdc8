"""Runs whose updates take over what sampling computed: when they do, and that a run is the same by it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from atrium.config.compose import compose
from atrium.models import kept_products
from atrium.models.kept_products import KeptProducts, KnownTokens, pays_to_keep
from atrium.models.tiny import TinySettings, build_tiny_policy

ONE_UPDATE = ("optimizer.num_minibatches=1", "num_steps=3", "checkpoint.every_num_steps=1")


@pytest.fixture(autouse=True)
def _narrow_models_are_wide_enough(monkeypatch):
    monkeypatch.setattr(kept_products, "MIN_HIDDEN_SIZE", 16)


def test_one_update_by_the_weights_that_sampled_repeats_what_they_computed():
    assert compose(["debug=tiny_steps", "optimizer.num_minibatches=1"]).repeats_sampling


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.num_minibatches=2",
        "optimizer.num_epochs=2",
        "rollout.lag=1",
        "compute.packing=false",
        "compute.memory_limit_mb=500",
        "compute.recompute_activations=true",
        "compute.num_processes=2",
        "model.lora={rank: 4, alpha: 8}",
    ],
)
def test_other_updates_do_not(override):
    assert not compose(["debug=tiny_steps", "optimizer.num_minibatches=1", override]).repeats_sampling


def test_keeping_pays_for_wide_models_with_a_fused_form(monkeypatch):
    model = build_tiny_policy(TinySettings(), seed=0).model
    assert pays_to_keep(model)
    handle = model.register_forward_hook(lambda *arguments: None)
    assert not pays_to_keep(model)
    handle.remove()
    monkeypatch.setattr(kept_products, "MIN_HIDDEN_SIZE", model.config.hidden_size + 1)
    assert not pays_to_keep(model)


@pytest.fixture
def undisturbed(runs):
    if not (runs.runs_dir / "taken-over").is_dir():
        runs.train(*ONE_UPDATE, "experiment_name=taken-over")
    return runs.only("taken-over")


def test_a_run_takes_over_and_learns_as_one_that_computes_everything(runs, undisturbed, monkeypatch):
    monkeypatch.setattr(kept_products, "MIN_HIDDEN_SIZE", 10_000)
    computed = runs.train(*ONE_UPDATE, "experiment_name=computed")
    weights, others = (
        load_file(run.checkpoint_path(3) / "policy" / "model.safetensors") for run in (undisturbed, computed)
    )
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, atol=1e-5, rtol=1e-4)


def test_a_run_with_one_update_per_batch_knows_every_completion(runs, monkeypatch):
    taken = []
    take = KeptProducts.take

    def watched(kept, *rows):
        taken.append(take(kept, *rows))
        return taken[-1]

    monkeypatch.setattr(KeptProducts, "take", watched)
    runs.train(*ONE_UPDATE, "experiment_name=watched")
    assert len(taken) == 3
    for known in taken:
        assert isinstance(known, KnownTokens)
        assert len(known.missing) < len(known.source_N) / 2


@pytest.mark.parametrize("step", [1, 2])
def test_such_a_run_killed_and_resumed_equals_an_undisturbed_one(runs, undisturbed, same_record, step):
    folder = runs.killed_after(step, *ONE_UPDATE, f"experiment_name=taken-over-{step}")
    runs.resume(folder)
    same_record(folder, undisturbed, step=3)
