"""Classes of methods: slopes against autograd of losses written out, classes, stored rollouts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from atrium.config.presets import read_preset, read_presets
from atrium.method.needs import Use
from atrium.method.windows import Window
from atrium.theory import atlas
from atrium.theory.atlas_document import alike

PAGE = Path(__file__).resolve().parents[2] / "docs" / "same_methods.md"
NAMES = (
    *("atr", "cispo", "clip_higher", "dapo", "dr_grpo", "dual_clip", "gpg", "grpo", "gspo", "lite_ppo"),
    *("reinforce", "sapo"),
)
ONE_UPDATE = atlas.Drift(name="one update")
ONCE = Use(num_updates_per_batch=1, group_size=8)


@cache
def method(name):
    return read_preset(name).method


def methods(*names):
    return {name: method(name) for name in names}


def synthetic():
    return [atlas.synthetic(seed) for seed in range(2)]


def written_out(name, logprob_BT, batch):
    """The loss of a method from its paper's formula, by plain tensor operations."""
    mask_BT, groups = batch.mask_BT.double(), batch.reward_B.view(-1, 6)
    centered = groups - groups.mean(dim=1, keepdim=True)
    scaled = (centered / (groups.std(dim=1, keepdim=True) + 1e-6)).view(-1, 1)
    centered = centered.view(-1, 1)
    log_ratio_BT = (logprob_BT - batch.proximal_logprob_BT) * mask_BT
    length_B1 = mask_BT.sum(dim=1, keepdim=True)

    def clip(ratio, advantage, low, high):
        return torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)

    def row_mean(value):
        return ((value * mask_BT).sum(dim=1, keepdim=True) / length_B1).mean()

    def token_mean(value, counted_BT=mask_BT):
        return (value * mask_BT).sum() / counted_BT.sum()

    w_BT = log_ratio_BT.exp()
    window = method("atr").divergence.fixed_window() or Window(0.0, 1.0)
    if name == "dapo":
        differs = (groups.std(dim=1, keepdim=True) > 0.0).expand_as(groups).reshape(-1, 1)
        return -token_mean(clip(w_BT, scaled, 0.8, 1.28), mask_BT * differs)
    if name == "gspo":
        mean_B1 = log_ratio_BT.sum(dim=1, keepdim=True) / length_B1
        return -clip(mean_B1.exp(), scaled, 1 - 3e-4, 1 + 4e-4).mean()
    if name == "sapo":
        tau = 1.0 + 0.05 * (scaled <= 0.0).double()
        return -row_mean(4.0 / tau * torch.sigmoid(tau * (w_BT - 1.0)) * scaled)
    if name == "dual_clip":
        clipped = clip(w_BT, scaled, 0.8, 1.2)
        return -row_mean(torch.where(scaled < 0.0, torch.maximum(clipped, 3.0 * scaled), clipped))
    nonzero = (batch.reward_B != 0.0).double().mean()
    losses = {
        "atr": lambda: row_mean(clip(w_BT, scaled, window.lower, window.upper)),
        "cispo": lambda: token_mean(w_BT.detach().clamp(max=1.2) * scaled * logprob_BT),
        "clip_higher": lambda: row_mean(clip(w_BT, scaled, 0.8, 1.28)),
        "dr_grpo": lambda: (clip(w_BT, centered, 0.8, 1.2) * mask_BT).sum() / len(mask_BT) / 64.0,
        "gpg": lambda: token_mean(centered / nonzero * logprob_BT),
        "grpo": lambda: row_mean(clip(w_BT, scaled, 0.8, 1.2)),
        "lite_ppo": lambda: token_mean(clip(w_BT, centered / (batch.reward_B.std() + 1e-6), 0.8, 1.2)),
        "reinforce": lambda: token_mean(centered * logprob_BT),
    }
    return -losses[name]()


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_slopes_are_autograd_of_losses_written_out_on_logits(spread):
    generator = torch.Generator().manual_seed(1)
    batch, policy = atlas.moved(atlas.synthetic(3), ONE_UPDATE, 0)
    shape = (*batch.mask_BT.shape, 7)
    old_BTV = torch.randn(shape, generator=generator, dtype=torch.float64)
    new_BTV = old_BTV + spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    token_BT1 = torch.randint(0, 7, (*shape[:2], 1), generator=generator)
    old_BT = old_BTV.log_softmax(-1).gather(-1, token_BT1)[..., 0]
    anchors = ("rollout_logprob_BT", "behavior_logprob_BT", "proximal_logprob_BT")
    batch = replace(batch, **dict.fromkeys(anchors, old_BT))
    found, expected = {}, {}
    for name in NAMES:
        logits_BTV = new_BTV.clone().requires_grad_()
        logprob_BT = logits_BTV.log_softmax(-1).gather(-1, token_BT1)[..., 0]
        [expected[name]] = torch.autograd.grad(
            written_out(name, logprob_BT, batch), logits_BTV, retain_graph=True
        )
        slope_BT = atlas.slopes(method(name), batch, replace(policy, logprob_BT=logprob_BT.detach()))[0]
        [found[name]] = torch.autograd.grad((slope_BT * logprob_BT).sum(), logits_BTV)
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-15)

    def classes(gradients):
        return {
            frozenset(b for b in NAMES if torch.allclose(gradients[a], gradients[b], rtol=1e-9, atol=1e-13))
            for a in NAMES
        }

    assert classes(found) == classes(expected)
    same = {"atr", "clip_higher", "dual_clip", "grpo", "gspo", "sapo"}
    assert (frozenset(same) in classes(found)) == (spread == 0.0)


def test_one_update_leaves_three_directions_of_the_twelve_methods():
    found = atlas.partition(methods(*NAMES), synthetic(), ONE_UPDATE)
    assert found.directions == (
        ("atr", "clip_higher", "dual_clip", "grpo", "gspo", "sapo"),
        ("dr_grpo", "gpg", "lite_ppo", "reinforce"),
        ("cispo", "dapo"),
    )
    assert len(found.equal) == 7


def test_the_page_states_the_classes_with_room_around_the_tolerance():
    known = {one.name: one.method for one in read_presets() if one.method.needs.distribution == "none"}
    found = atlas.partition(known, synthetic(), ONE_UPDATE)
    numbers = (len(found.equal), len(found.directions), found.num_nearly)
    assert f"| one update per batch | {' | '.join(map(str, numbers))} |" in PAGE.read_text(encoding="utf-8")
    assert found.within < 1e-4 * atlas.TOLERANCE
    assert found.between > 10.0 * atlas.TOLERANCE


def test_classes_split_as_the_policy_moves_away():
    numbers = [
        len(atlas.partition(methods(*NAMES), synthetic(), atlas.Drift(name="", spread=spread)).directions)
        for spread in (0.0, 0.02, 0.1, 1.0)
    ]
    assert numbers[0] == 3
    assert numbers == sorted(numbers)
    assert numbers[-1] == len(NAMES) - 2, "GPG and Lite PPO scale the advantages of two others"


def test_methods_of_whole_distributions_are_known_on_policy_alone():
    assert atlas.can_compute(method("dppo_top_k_tv"), ONE_UPDATE)
    assert not atlas.can_compute(method("dppo_top_k_tv"), atlas.Drift(name="", spread=0.1))


def row(problem, reward, logprobs, **columns):
    return {"problem_id": problem, "reward": reward, "logprobs": logprobs, **columns}


def test_stored_rollouts_become_groups_with_the_recorded_drift():
    rows = [
        row("a", 1.0, [-0.5, -1.0], ratio=[1.0, 2.0]),
        row("a", 0.0, [-0.5], ratio=[0.5]),
        row("b", 0.0, [-0.1, -0.2, -0.3], own=[True, False, True]),
        row("b", 1.0, None),
        row("c", 1.0, [-1.0]),
    ]
    found = atlas.recorded(rows, max_groups=2)
    assert found.group_B.tolist() == [0, 0, 1]
    assert found.mask_BT.tolist() == [[True, True, False], [True, False, False], [True, False, True]]
    torch.testing.assert_close(found.log_ratio_BT[0, 1], torch.tensor(2.0, dtype=torch.float64).log())
    _, policy = atlas.moved(found, atlas.Drift(name="", spread=None), 0)
    assert policy.logprob_BT[1, 0] == pytest.approx(-0.5 - 0.693147, abs=1e-6)


def test_stored_rollouts_without_log_probabilities_are_none():
    assert atlas.recorded([row("a", 1.0, None)], max_groups=2) is None


def test_methods_used_once_per_batch_are_said_to_be_alike():
    assert alike(methods("grpo", "gspo", "reinforce"), ONCE) == ["grpo and gspo have identical gradients"]


def test_methods_used_several_times_per_batch_are_not_alike():
    assert alike(methods("grpo", "gspo"), replace(ONCE, num_updates_per_batch=16)) == []
