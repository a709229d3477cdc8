"""Training in TRL: gradients equal TRL's own wherever it has the method, and other methods train.

Run by `make test-peers`, in the environment that TRL has in benchmarks/requirements-trl.txt.
"""

from __future__ import annotations

import math

import pytest
from tests.peers import tiny_trl
from tests.peers.tiny_trl import EPSILON, OWN

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("default"),
]


def gradients(accumulation, method=None, settings=(), reward_funcs=tiny_trl.reward, **changes):
    args = tiny_trl.config(accumulation, **changes)
    atrium = {} if method is None else {"atrium": method, "atrium_settings": settings}
    return tiny_trl.train(tiny_trl.build(args, reward_funcs, **atrium))


def far_apart(found, expected):
    """The largest difference in each update, as a share of the largest derivative."""
    assert len(found) == len(expected) == 2
    return [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True)]


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("method", OWN)
def test_gradients_of_a_training_step_are_trls(method, accumulation):
    changes, settings = OWN[method]
    expected = gradients(accumulation, **changes)
    found = gradients(accumulation, method, settings)
    assert max(far_apart(found, expected)) < 2e-5


@pytest.mark.parametrize(("accumulation", "weight"), [(1, "all"), (2, "all"), (4, "all"), (4, "top_entropy")])
def test_tokens_of_each_micro_batch_are_counted_as_bnpo_counts_them(accumulation, weight):
    """Also with `top_entropy`, which selects all tokens here, but needs an additional pass."""
    expected = gradients(accumulation, loss_type="bnpo")
    settings = [EPSILON, "algorithm.reduction.kind=token_mean", f"algorithm.token_weight.kind={weight}"]
    settings += ["algorithm.token_weight.frac=1.0"] * (weight != "all")
    assert max(far_apart(gradients(accumulation, "grpo", settings, loss_type="bnpo"), expected)) < 2e-5


def test_it_is_atrium_that_computes_them():
    """With the sides of the clip exchanged the second update differs; the first has ratios of 1."""
    expected = gradients(2, loss_type="dapo", epsilon=0.05, epsilon_high=0.3)
    right = ["divergence.epsilon_low=0.05", "divergence.epsilon_high=0.3", EPSILON]
    wrong = ["divergence.epsilon_low=0.3", "divergence.epsilon_high=0.05", EPSILON]
    assert max(far_apart(gradients(2, "dapo", right), expected)) < 2e-5
    first, second = far_apart(gradients(2, "dapo", wrong), expected)
    assert first < 2e-5
    assert second > 1e-2


@pytest.mark.parametrize("method", ["atr", "gvpo", "bapo", "rpg_ufkl", "dppo_binary_tv", "clip_cov", "topr"])
def test_a_method_that_trl_lacks_trains_alike_with_torn_groups_and_without(method):
    """However rows are shuffled into micro-batches."""
    whole = gradients(1, method)
    assert all(one.isfinite().all() and one.abs().max() > 0 for one in whole)
    for accumulation in (2, 4):
        assert max(far_apart(gradients(accumulation, method), whole)) < 2e-5


def test_what_was_measured_stands_in_trls_log():
    trainer = tiny_trl.build(tiny_trl.config(2), atrium="atr")
    tiny_trl.train(trainer)
    logged = trainer.state.log_history[1]
    assert logged["objective/clip_high_frac"] + logged["objective/clip_low_frac"] > 0
    assert logged["objective/entropy"] > 0


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("method", ["grpo", "dapo", "lite_ppo"])
def test_gradients_with_rewards_that_abstain_are_trls(method, accumulation):
    changes, settings = OWN[method]
    reward = tiny_trl.abstaining_reward
    expected = gradients(accumulation, reward_funcs=reward, **changes)
    assert max(far_apart(expected, gradients(accumulation, **changes))) > 1e-2
    found = gradients(accumulation, method, settings, reward)
    assert max(far_apart(found, expected)) < 2e-5


@pytest.mark.parametrize("accumulation", [1, 4])
def test_gradients_of_gdpo_with_two_weighted_rewards_are_trls(accumulation):
    rewards = [tiny_trl.reward, tiny_trl.vowels]
    changes = {"loss_type": "grpo", "reward_weights": [1.0, 0.25]}
    summed = gradients(accumulation, reward_funcs=rewards, **changes)
    expected = gradients(
        accumulation,
        reward_funcs=rewards,
        multi_objective_aggregation="normalize_then_sum",
        **changes,
    )
    assert max(far_apart(expected, summed)) > 1e-2
    found = gradients(accumulation, "gdpo", (), rewards, reward_weights=[1.0, 0.25])
    assert max(far_apart(found, expected)) < 2e-5


def test_rows_without_reward_have_no_advantage_and_leave_the_batch_mean_alone():
    settings = ["algorithm.advantage.baseline=batch_mean"]
    trainer = tiny_trl.build(
        tiny_trl.config(), tiny_trl.abstaining_reward, atrium="reinforce", atrium_settings=settings
    )
    tiny_trl.train(trainer)
    batch = trainer._buffered_inputs[0]
    counts_B, reward_B = batch["atrium_counts"], batch["atrium_reward"]
    assert 0 < counts_B.sum() < tiny_trl.ROWS
    expected_B = (reward_B - reward_B[counts_B].mean()) * counts_B
    assert (batch["advantages"][:, 0] - expected_B).abs().max() < 1e-6
    rewards = trainer._logs["rewards"]["abstaining_reward"]
    abstained = sum(map(math.isnan, rewards)) / tiny_trl.ROWS
    assert trainer.state.log_history[0]["rollout/abstained_frac"] == abstained > 0.0


@pytest.mark.parametrize(("method", "kept"), [("grpo_kl", 0), ("gvpo", 0), ("asymre", 1), ("dapo", 1)])
def test_groups_with_fewer_than_two_rewards_have_no_gradient(method, kept):
    """KL penalties, constants of a group and shifted baselines included."""

    def reward(completions, **_):
        return [float(place % tiny_trl.GROUP < kept) or None for place, _ in enumerate(completions)]

    assert all(one.abs().max() == 0.0 for one in gradients(2, method, reward_funcs=reward))


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("atr", {"epsilon": 0.3}, "epsilon=0.3 has no effect in GRPOConfig"),
        ("atr", {"loss_type": "grpo"}, "use dapo"),
        ("atr", {"beta": 0.1}, "remove beta"),
        ("gvpo", {"steps_per_generation": 2}, "choose steps_per_generation=1"),
        ("minirl", {}, "requires the log-probabilities of both the engine and the trainer"),
        ("dppo_top_k_kl", {}, "requires the distributions over the vocabulary"),
        ("rpg_ufkl", {"num_iterations": 1}, "has no gradient with one update per batch"),
        ("atrr", {}, "did you mean atr?"),
    ],
)
def test_what_cannot_run_is_one_line_before_a_model_is_loaded(method, changes, said):
    from atrium.base.errors import ConfigError
    from atrium.peers.trl_trainer import AtriumGRPOTrainer

    with pytest.raises(ConfigError) as caught:
        AtriumGRPOTrainer("nowhere/model", tiny_trl.reward, tiny_trl.config(**changes), atrium=method)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_version_of_trl_is_refused(monkeypatch):
    import trl

    from atrium.base.errors import ConfigError
    from atrium.peers.trl_trainer import AtriumGRPOTrainer

    monkeypatch.setattr(trl, "__version__", "2.0.0")
    with pytest.raises(ConfigError, match=r"TRL 2\.0\.0 is not supported, expected 1\.16"):
        AtriumGRPOTrainer("nowhere/model", atrium="atr")
