"""Further runs with real vLLM, which ends with the last of them: what is trained on its log-probabilities."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from tests.vllm import test_vllm_runs
from tests.vllm.settings import SMALL
from tests.vllm.test_vllm_runs import EXACT, train

from atrium.assemble.graders import build_grader
from atrium.base.metrics import MISMATCH_MAX, NUM_UPDATES, RATIO_MAX, REWARD, STALENESS
from atrium.config.compose import compose
from atrium.engines import vllm_engine
from atrium.engines.vllm_start import batching, engine_arguments, model_config

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _one_vllm():
    """The first run's vLLM and grader, which serve all others: one architecture, one place, other weights."""
    start, kept = vllm_engine.start_vllm, []

    def start_once(model, settings, place, cache_dir, base):
        assert base is None
        asked = model_config(model), engine_arguments(settings, place), batching(settings, place)
        if not kept:
            kept.append((start(model, settings, place, cache_dir, base), asked))
        engine, answered = kept[0]
        assert asked == answered
        engine.engine_core.shutdown = lambda: None
        return engine

    config = compose([*SMALL])
    with pytest.MonkeyPatch.context() as patch, build_grader(config.grader, config.model) as grader:
        patch.setattr(vllm_engine, "start_vllm", start_once)
        patch.setattr(test_vllm_runs, "build_grader", lambda *_: nullcontext(grader))
        yield
    for engine, _ in kept:
        del engine.engine_core.shutdown
        engine.engine_core.shutdown()


CORRECTION = "algorithm.correction={{kind: {}}}"
TRUNCATED = CORRECTION.format("truncated_importance, cap: 2.0")
MASKED = "masked_importance, lower: 0.5, upper: {}"


@pytest.mark.parametrize(
    "overrides",
    [
        (TRUNCATED,),
        ("algorithm=dppo_binary_tv",),
        ("compute.behavior_logprobs=recompute", TRUNCATED),
        *(
            pytest.param((setting,), marks=pytest.mark.release)
            for setting in (
                "algorithm=minirl",
                CORRECTION.format(MASKED.format(5.0)),
                CORRECTION.format(MASKED.format("2.0, level: sequence_mean")),
                CORRECTION.format("sequence_rejection, estimator: k3, bound: 0.01"),
            )
        ),
    ],
    ids=" ".join,
)
def test_corrections_and_anchors_take_the_engines_log_probabilities(tmp_path, overrides):
    steps, _ = train(tmp_path, "num_steps=2", *overrides)
    for step in steps:
        assert step[NUM_UPDATES.name] == 2
        assert step[MISMATCH_MAX.name] < EXACT


def test_a_batch_that_is_sampled_ahead_is_stale_by_one_step_and_still_compared_at_equal_weights(tmp_path):
    steps, _ = train(tmp_path, "num_steps=4", "rollout.lag=1", "optimizer.num_minibatches=1")
    assert [step[STALENESS.name] for step in steps] == [0.0, 1.0, 1.0, 1.0]
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert steps[1][RATIO_MAX.name] > 1.001


def test_adapters_are_merged_on_their_way_to_the_engine_and_learn(tmp_path):
    steps, folder = train(
        tmp_path, "num_steps=12", "model.lora={rank: 8, alpha: 16}", "optimizer.learning_rate=2e-2"
    )
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert steps[-1][REWARD.name] > steps[0][REWARD.name] + 0.2
    assert (folder.checkpoint_path(12) / "policy" / "adapter" / "adapter_model.safetensors").is_file()


def test_groups_without_a_signal_are_replaced_while_the_others_are_sampled(tmp_path):
    steps, _ = train(
        tmp_path,
        "num_steps=2",
        "rollout.group_size=2",
        "algorithm.group_filter={kind: resample, max_num_rounds: 8}",
    )
    for step in steps:
        assert 16 < step["rollout/num_groups_sampled"] <= 128
