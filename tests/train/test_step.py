"""One training step: which passes run, what the gradient depends on, and what is measured and traced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atrium.base.errors import CheckpointError, TrainingDivergedError
from atrium.method.state_divergences import STATE_DIVERGENCES
from atrium.models.settings import TinyModelSettings
from atrium.train.settings import AdamWSettings
from atrium.train.update.divergence_meter import DivergenceMeter
from atrium.train.update.optimizer import PolicyOptimizer

METHODS = [
    ("algorithm=grpo",),
    ("algorithm=atr",),
    ("algorithm=dapo",),
    ("algorithm=dr_grpo",),
    ("algorithm=gspo",),
    ("algorithm=gvpo",),
    ("algorithm=rpg_ufkl",),
    ("algorithm=clip_cov",),
    ("algorithm=reinforce_plus_plus",),
    ("algorithm=grpo", "regularizer=entropy"),
]
STILL = AdamWSettings(
    learning_rate=1e-30,  # lost in rounding: the weights stay what they are
    beta1=0.9,
    beta2=0.99,
    epsilon=1.0,
    weight_decay=0.0,
    num_warmup_steps=0,
    schedule="constant",
    max_grad_norm=None,
)
KEEP, SKIP = ("algorithm=grpo",), ("algorithm=grpo", "algorithm.group_filter.kind=skip")
DIRECT = TinyModelSettings.direct_token_id
MIXED = ((1, 0, 0), (1, 1, 1), (0, 1), (0, 0, 0))


def _weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _trained(make, overrides, rows, **settings):
    """The weights after one step from equal starts, and the step's metrics."""
    model = make.exact_model(seed=3)
    reference = make.exact_model(seed=4)
    updater = make.updater(make.objective(*overrides), model, reference=reference, **settings)
    before = _weights(model)
    _, named = make.step(updater, rows)
    change = _weights(model) - before
    assert change.abs().max() > 1e-5
    return change, named


def _stale_rows(make, groups=None, **settings):
    """Rows in float64, sampled from a policy some way from the one that is trained."""
    return make.rows(groups or make.groups(), model=make.exact_model(seed=3), spread=0.3, **settings)


@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_an_update_does_not_depend_on_how_it_is_cut_into_micro_batches(make, overrides):
    rows = _stale_rows(make)
    settings = {"num_minibatches": 2, "num_epochs": 2}
    whole, in_one = _trained(make, overrides, rows, **settings)
    parts, in_parts = _trained(make, overrides, rows, micro_batch_tokens=45, **settings)
    assert (whole - parts).abs().max() < 1e-13
    for name, value in in_one.items():
        if name.startswith(("objective/", "mismatch/", "optimizer/grad")):
            assert in_parts[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_an_update_does_not_depend_on_the_order_of_rows(make, overrides):
    rows = _stale_rows(make)
    order = np.random.default_rng(0).permutation(rows.batch.num_rows)
    settings = {"num_minibatches": 2, "num_epochs": 2, "micro_batch_tokens": 60}
    straight, _ = _trained(make, overrides, rows, **settings)
    shuffled, _ = _trained(make, overrides, rows.select(order), **settings)
    assert (straight - shuffled).abs().max() < 1e-13


def test_micro_batches_may_hold_single_rows(make):
    rows = _stale_rows(make)
    whole, _ = _trained(make, ("algorithm=atr",), rows)
    alone, _ = _trained(make, ("algorithm=atr",), rows, micro_batch_tokens=1)
    assert (whole - alone).abs().max() < 1e-13


def test_padding_holds_nothing_that_an_update_reads(make):
    rows = _stale_rows(make)
    batch = rows.batch
    poisoned_BT = torch.where(batch.mask_BT, batch.rollout_logprob_BT, torch.nan)
    poisoned = rows.with_batch(replace(batch, rollout_logprob_BT=poisoned_BT))
    settings = {"num_epochs": 2, "micro_batch_tokens": 60}
    clean, _ = _trained(make, ("algorithm=atr",), rows, **settings)
    dirty, _ = _trained(make, ("algorithm=atr",), poisoned, **settings)
    assert clean.equal(dirty)


def test_skipping_groups_without_signal_changes_no_gradient(make):
    groups = make.groups(rewards=MIXED)
    settings = {"num_minibatches": 1, "num_epochs": 2, "micro_batch_tokens": 60}
    kept, in_all = _trained(make, KEEP, _stale_rows(make, groups), **settings)
    trains = [True, False, True, False]
    skipped, in_some = _trained(make, SKIP, _stale_rows(make, groups, trains=trains), **settings)
    assert (kept - skipped).abs().max() < 1e-13
    assert in_some["optimizer/grad_norm"] == pytest.approx(in_all["optimizer/grad_norm"])


def test_skipped_groups_are_never_computed_with_gradient(make):
    groups = make.groups(rewards=MIXED)
    model = make.exact_model()
    updater = make.updater(make.objective(*SKIP), model, num_epochs=2)
    make.step(updater, make.rows(groups, trains=[True, False, True, False]))
    assert make.calls(updater) == [(5, True), (5, True)]


def test_a_minibatch_in_which_nothing_trains_is_no_update(make):
    groups = make.groups(rewards=MIXED)
    updater = make.updater(make.objective(*SKIP), make.exact_model(), num_minibatches=4)
    output, named = make.step(updater, make.rows(groups, trains=[True, False, True, False]))
    assert output.num_updates == named["optimizer/num_updates"] == 2


@pytest.mark.parametrize(("num_minibatches", "num_epochs"), [(1, 2), (2, 1), (2, 3)])
def test_several_updates_with_engine_numbers_need_no_pass_of_their_own(make, num_minibatches, num_epochs):
    updater = make.updater(
        make.objective("algorithm=grpo"),
        make.exact_model(),
        num_minibatches=num_minibatches,
        num_epochs=num_epochs,
    )
    output, named = make.step(updater, make.rows(make.groups()))
    assert output.num_updates == num_minibatches * num_epochs
    assert all(with_gradient for _, with_gradient in make.calls(updater))
    assert sum(num_rows for num_rows, _ in make.calls(updater)) == 12 * num_epochs
    assert named["optimizer/num_trained_tokens"] == num_epochs * int(
        make.rows(make.groups()).batch.mask_BT.sum()
    )


def test_recomputing_the_behavior_takes_one_pass_over_the_batch(make):
    updater = make.updater(
        make.objective("algorithm=grpo"),
        make.tiny_policy().model,
        num_minibatches=2,
        num_epochs=2,
        behavior_logprobs="recompute",
    )
    make.step(updater, make.rows(make.groups()))
    without = [num_rows for num_rows, with_gradient in make.calls(updater) if not with_gradient]
    assert without == [12]
    assert make.calls(updater)[0] == (12, False)


def test_a_recomputed_behavior_is_the_policy_that_the_step_began_with(make):
    rows = _stale_rows(make)
    for behavior, stale in (("recompute", False), ("engine", True)):
        updater = make.updater(
            make.objective("algorithm=grpo"),
            make.exact_model(seed=3),
            num_epochs=2,
            behavior_logprobs=behavior,
            optimizer=STILL,
        )
        _, named = make.step(updater, rows)
        spread = named["objective/ratio_max"] - named["objective/ratio_min"]
        assert (spread > 0.1) is stale
        assert named["mismatch/logprob_mean"] > 0.1  # the engine's numbers are compared either way


def test_engine_and_recomputed_behavior_agree_where_the_engine_is_exact(make):
    rows = make.rows(make.groups(), model=make.exact_model(seed=3))
    settings = {"num_minibatches": 2, "num_epochs": 2}
    engine, _ = _trained(make, ("algorithm=atr",), rows, **settings)
    recomputed, _ = _trained(make, ("algorithm=atr",), rows, behavior_logprobs="recompute", **settings)
    assert (engine - recomputed).abs().max() < 1e-13


def test_a_divergence_of_the_likeliest_token_is_measured_at_the_sampled_one(make):
    """With one token beside the rest, half the L1 distance is how far the sampled one's probability moved."""
    model, rows = make.exact_model(seed=3), make.rows(make.groups())
    forward = make.forward(model, meter=DivergenceMeter(STATE_DIVERGENCES["total_variation"], 1))
    with torch.no_grad():
        rows = replace(rows, proximal_state_BTD=forward.states(rows))
        forward.freeze_proximal_head()
        before_BT = forward(rows, entropy="none").logprob_BT.exp()
        for parameter in model.parameters():
            parameter.mul_(1.3)
        after = forward(rows, entropy="none")
    moved_BT = torch.where(rows.batch.mask_BT, (after.logprob_BT.exp() - before_BT).abs(), 0.0)
    torch.testing.assert_close(after.divergence_BT.double(), moved_BT, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("behavior", ["engine", "recompute"])
def test_one_update_per_batch_needs_no_behavior_pass_and_has_a_ratio_of_exactly_one(make, behavior):
    model = make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=atr"), model, behavior_logprobs=behavior)
    _, named = make.step(updater, make.rows(make.groups()))
    assert make.calls(updater) == [(12, True)]
    assert named["objective/ratio_max"] == named["objective/ratio_min"] == 1.0
    assert named["objective/kl_k3"] == named["objective/clip_high_frac"] == 0.0
    assert named["optimizer/grad_norm"] > 0.0


@pytest.mark.parametrize(
    ("overrides", "num_epochs", "passes"),
    [
        (("algorithm=grpo",), 2, []),  # the numbers of the sampling weights came with the rows
        (("algorithm=decoupled",), 1, []),  # the policy is still the proximal one
        (("algorithm=decoupled",), 2, [(12, False)]),
    ],
)
def test_on_stale_rows_a_pass_for_the_start_of_the_step_runs_only_where_it_is_read_and_left(
    make, overrides, num_epochs, passes
):
    model = make.tiny_policy().model
    updater = make.updater(make.objective(*overrides), model, num_epochs=num_epochs, is_stale=True)
    rows = make.rows(make.groups(), model=model, spread=0.5)
    _, named = make.step(updater, rows)
    assert make.calls(updater) == [*passes, *[(12, True)] * num_epochs]
    assert named["objective/kl_before_update"] > 0.01
    is_cut = named["objective/outside_before_update_frac"] > 0.0
    assert is_cut is (overrides == ("algorithm=grpo",)), "only ratios to old weights leave a window at once"


def test_stale_rows_without_the_trainers_numbers_are_refused_where_these_are_asked_for(make):
    updater = make.updater(
        make.objective("algorithm=grpo"),
        make.tiny_policy().model,
        is_stale=True,
        behavior_logprobs="recompute",
    )
    with pytest.raises(CheckpointError, match="start a new run"):
        make.step(updater, make.rows(make.groups()))


def test_tokens_are_drawn_anew_in_every_update(make):
    overrides = ("algorithm=clip_cov", "algorithm.token_weight={frac: 0.3, lower: -99.0, upper: 99.0}")

    def norms(step, num_epochs):
        updater = make.updater(
            make.objective(*overrides), make.exact_model(seed=3), num_epochs=num_epochs, optimizer=STILL
        )
        rows = make.rows(make.groups(), model=make.exact_model(seed=3))
        _, named = make.step(updater, rows, step=step)
        return named["optimizer/grad_norm"], named["optimizer/grad_norm_max"]

    mean, largest = norms(step=1, num_epochs=2)
    assert largest > 1.001 * mean, "both updates of a step dropped the same tokens"
    (first, _), (again, _), (later, _) = (norms(step=step, num_epochs=1) for step in (1, 1, 2))
    assert again == first
    assert abs(later / first - 1.0) > 1e-3, "two steps on equal rows dropped the same tokens"


def test_the_reference_runs_only_where_the_objective_needs_it(make):
    reference = make.tiny_policy(seed=1).model
    for overrides, calls in ((("algorithm=grpo",), []), (("algorithm=grpo_kl",), [(12, False)])):
        objective = make.objective(*overrides)
        updater = make.updater(objective, make.tiny_policy().model, reference=reference, num_epochs=2)
        make.step(updater, make.rows(make.groups()))
        assert updater.reference_forward.calls == calls
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_a_policy_that_is_its_own_reference_has_no_penalty(make):
    rows = make.rows(make.groups())
    penalties = []
    for seed in (0, 1):
        reference = make.tiny_policy(seed).model
        updater = make.updater(
            make.objective("algorithm=grpo_kl"), make.tiny_policy(0).model, reference=reference
        )
        penalties.append(make.step(updater, rows)[1]["objective/regularizer"])
    assert penalties[0] == pytest.approx(0.0, abs=1e-9)
    assert penalties[1] > 1e-4


def test_the_kl_after_the_last_update_is_that_of_the_policy_it_left(make):
    model, rows = make.exact_model(seed=3), make.rows(make.groups(), model=make.exact_model(seed=3))
    updater = make.updater(make.objective("algorithm=grpo"), model, num_epochs=2)
    _, named = make.step(updater, rows)
    with torch.no_grad():
        after_BT = make.forward(model)(rows, entropy="none").logprob_BT
    log_ratio_M = (after_BT - rows.batch.rollout_logprob_BT)[rows.batch.mask_BT]
    expected = float((log_ratio_M.expm1() - log_ratio_M).mean())
    assert named["objective/kl_after_update"] == pytest.approx(expected, rel=1e-9)
    assert expected > 2.0 * named["objective/kl_k3"] > 0.0, "the last update is in no other metric"


def test_the_share_of_worked_answers_is_read_from_the_first_tokens_distribution(make):
    model = make.exact_model(seed=3)
    updater = make.updater(make.objective("algorithm=grpo"), model, num_minibatches=2)
    updater.direct_token_id = DIRECT
    groups = make.groups()
    with torch.no_grad():
        logits = [model(torch.from_numpy(one.prompt_token_ids)[None].long()).logits[0, -1] for one in groups]
    expected = np.mean([1.0 - float(logit_V.softmax(-1)[DIRECT]) for logit_V in logits])
    _, named = make.step(updater, make.rows(groups))
    assert named["rollout/worked_frac"] == pytest.approx(expected, abs=1e-6)


def test_a_policy_that_no_update_moves_has_no_kl_after_it(make):
    rows = make.rows(make.groups(), model=make.exact_model(seed=3))
    updater = make.updater(make.objective("algorithm=grpo"), make.exact_model(seed=3), optimizer=STILL)
    assert make.step(updater, rows)[1]["objective/kl_after_update"] == pytest.approx(0.0, abs=1e-12)


def test_gvpo_prepares_each_minibatch_at_the_current_parameters(make):
    updater = make.updater(
        make.objective("algorithm=gvpo"),
        make.tiny_policy().model,
        num_minibatches=2,
        reference=make.tiny_policy(seed=1).model,
    )
    make.step(updater, make.rows(make.groups()))
    assert make.calls(updater) == [(6, False), (6, True), (6, False), (6, True)]


def test_minibatches_hold_whole_groups_in_an_order_keyed_by_step_and_epoch(make):
    rows = make.rows(make.groups())
    updater = make.updater(make.objective("algorithm=grpo"), make.exact_model(), num_minibatches=2)

    def order(step, epoch):
        group_B = rows.batch.group_B.numpy()
        minibatches = [*updater.split_minibatches(rows, step, epoch)]
        assert sorted(np.concatenate(minibatches).tolist()) == [*range(12)]
        return [tuple(np.unique(group_B[minibatch]).tolist()) for minibatch in minibatches]

    orders = [order(step, epoch) for step in range(4) for epoch in range(3)]
    assert orders[:3] == [order(0, epoch) for epoch in range(3)]
    assert len({tuple(parts) for parts in orders}) > 3
    assert all(len(groups) == 2 for parts in orders for groups in parts)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_stops_training_and_leaves_the_weights(make, poison):
    model = make.tiny_policy().model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    updater = make.updater(make.objective("algorithm=atr"), model)
    next(model.parameters()).register_hook(lambda gradient: gradient * poison)
    with pytest.raises(TrainingDivergedError, match="gradient of step 7 is not finite"):
        make.step(updater, make.rows(make.groups()), step=7)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert updater.optimizer.state() == {}


def test_traces_say_what_the_last_update_saw_and_cut(make):
    rows = _stale_rows(make)
    model = make.exact_model(seed=3)
    updater = make.updater(
        make.objective("algorithm=grpo"),
        model,
        num_epochs=2,
        micro_batch_tokens=60,
        optimizer=STILL,
    )
    output, named = make.step(updater, rows, trace=True)
    traces, mask_BT = output.traces, rows.batch.mask_BT
    with torch.no_grad():
        policy = make.forward(model)(rows, entropy="value")
    ratio_BT = torch.where(mask_BT, (policy.logprob_BT - rows.batch.rollout_logprob_BT).exp(), 1.0)
    advantage_BT = make.objective("algorithm=grpo").with_advantages(rows.batch).advantage_BT
    high_BT = mask_BT & (advantage_BT > 0) & (ratio_BT > 1.2)
    low_BT = mask_BT & (advantage_BT < 0) & (ratio_BT < 0.8)
    assert high_BT.any()
    assert low_BT.any()
    assert traces.clipped_BT.tolist() == (high_BT.int() - low_BT.int()).tolist()
    assert np.abs(traces.ratio_BT - ratio_BT.numpy())[mask_BT].max() < 1e-6
    assert np.abs(traces.entropy_BT - policy.entropy_BT.numpy())[mask_BT].max() < 1e-6
    assert np.abs(traces.advantage_BT - advantage_BT.numpy())[mask_BT].max() < 1e-6
    for array in (traces.advantage_BT, traces.ratio_BT, traces.entropy_BT, traces.clipped_BT):
        assert array.shape == mask_BT.shape
    num_tokens = int(mask_BT.sum())
    assert named["objective/clip_high_frac"] == pytest.approx(int(high_BT.sum()) / num_tokens)
    assert named["objective/clip_low_frac"] == pytest.approx(int(low_BT.sum()) / num_tokens)


def test_the_entropy_coefficient_in_force_is_recorded_where_there_is_one(make):
    rows = _stale_rows(make)
    objective = make.objective("algorithm=grpo", "regularizer=paper/entropy_adaptive")
    updater = make.updater(objective, make.exact_model(seed=3), num_minibatches=2)
    _, first = make.step(updater, rows)
    assert first["objective/entropy_coefficient"] == 0.01
    assert first["objective/entropy"] > objective.method.regularizer.entropy.target
    state = objective.update_state(objective.initial_state(), first, step=1)
    _, second = make.step(updater, rows, step=2, state=state)
    assert second["objective/entropy_coefficient"] == 0.0
    _, without = make.step(make.updater(make.objective(*KEEP), make.exact_model(seed=3)), rows)
    assert "objective/entropy_coefficient" not in without


def test_rows_that_no_update_used_keep_neutral_traces(make):
    groups = make.groups(rewards=MIXED)
    rows = make.rows(groups, trains=[True, False, True, False])
    output, _ = make.step(make.updater(make.objective(*SKIP), make.exact_model()), rows, trace=True)
    unused_B = ~rows.batch.is_trained_B.numpy()
    assert (output.traces.ratio_BT[unused_B] == 1.0).all()
    assert (output.traces.clipped_BT[unused_B] == 0).all()
    assert np.isnan(output.traces.entropy_BT[unused_B]).all()


def test_no_traces_are_made_unasked(make):
    updater = make.updater(make.objective("algorithm=atr"), make.exact_model())
    output, _ = make.step(updater, make.rows(make.groups()))
    assert output.traces is None


def test_the_gradient_is_that_of_the_loss_that_is_reported(make):
    rows, name = _stale_rows(make), "transformer.h.0.mlp.c_fc.weight"

    def at(shift):
        model = make.exact_model(seed=3)
        with torch.no_grad():
            model.get_parameter(name)[0, 0] += shift
        updater = make.updater(make.objective("algorithm=dr_grpo"), model, num_epochs=2, optimizer=STILL)
        seen = []
        model.get_parameter(name).register_post_accumulate_grad_hook(lambda own: seen.append(own.grad[0, 0]))
        _, named = make.step(updater, rows)
        return named["objective/loss"], float(seen[-1])

    slope = (at(1e-6)[0] - at(-1e-6)[0]) / 2e-6
    assert slope == pytest.approx(at(0.0)[1], rel=1e-5)


@pytest.mark.parametrize("offload", [False, True])
def test_no_gradient_is_left_when_a_step_is_over(make, offload):
    model = make.exact_model(seed=3)
    updater = make.updater(make.objective("algorithm=grpo"), model, num_minibatches=2)
    updater.optimizer = PolicyOptimizer(model, updater.optimizer.settings, offload=offload, num_steps=10)
    before = _weights(model)
    make.step(updater, _stale_rows(make))
    assert not _weights(model).equal(before)
    assert all(parameter.grad is None for parameter in model.parameters())
