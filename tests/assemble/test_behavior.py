"""Parts that compare the trainer's log-probabilities with the engine's act or are refused, never silent."""

from __future__ import annotations

import pytest
from tests.assemble.conftest import metrics_of

from atrium.base.errors import ConfigError
from atrium.config.compose import compose

ANY_DIFFERENCE = "algorithm.correction={kind: sequence_rejection, estimator: k2, bound: 1e-30}"
COMPARING = [
    ("algorithm.correction={kind: truncated_importance, cap: 2.0}",),
    ("algorithm.correction={kind: masked_importance, lower: 0.5, upper: 5.0}",),
    ("algorithm.correction={kind: sequence_rejection, estimator: k3, bound: 0.01}",),
    ("algorithm=minirl",),
    ("algorithm=grpo", "algorithm.ratio.gate.anchor=rollout"),
]
SAME_NUMBERS = [
    # settings, what the message names
    (("compute.behavior_logprobs=engine",), "compute.behavior_logprobs=engine"),
    (("compute.behavior_logprobs=engine", "rollout.lag=1"), "compute.behavior_logprobs=engine"),
    (("rollout=bank", "rollout.source=x"), "rollout.engine=bank"),
    (("rollout=bank_and_live", "rollout.source=x"), "rollout.engine=bank"),
]


def test_a_correction_is_no_factor_of_one_in_float32(runs):
    """Sampler and trainer round differently, and this bound rejects every completion in which it shows."""
    plain = runs.train("algorithm=grpo", "experiment_name=uncorrected")
    corrected = runs.train("algorithm=grpo", ANY_DIFFERENCE, "experiment_name=corrected")
    norms = [metrics_of(folder)[1]["optimizer/grad_norm"] for folder in (plain, corrected)]
    # How many completions it shows in is the processor's: all, or a few.
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize(("same", "named"), SAME_NUMBERS)
@pytest.mark.parametrize("comparing", COMPARING, ids=" ".join)
def test_a_part_that_would_compare_equal_numbers_is_refused_in_one_line(comparing, same, named):
    with pytest.raises(ConfigError, match=r"algorithm\.(correction|ratio)\..*; choose ") as refused:
        compose([*comparing, *same])
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_start_of_the_step_differs_from_what_sampled_with_a_lag_only():
    across = "algorithm.correction={kind: truncated_importance, cap: 2.0, policy: proximal}"
    compose([across, "rollout.lag=1", "compute.behavior_logprobs=engine"])
    with pytest.raises(ConfigError, match=r"has no effect, since compute\.behavior_logprobs=engine"):
        compose([across, "compute.behavior_logprobs=engine"])
