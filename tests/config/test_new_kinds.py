"""A kind that is typed begins its section anew; what is typed beside it, and what all kinds share, stays."""

from __future__ import annotations

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose


def test_the_gradient_of_the_old_surrogate_is_not_that_of_the_new_one():
    assert (
        compose(["algorithm=cispo", "algorithm.surrogate.kind=clip"]).algorithm.surrogate.gradient
        == "pathwise"
    )


def test_a_budget_is_not_read_as_a_clip_range():
    with pytest.raises(ConfigError, match=r"divergence\.delta is missing.*divergence=OPTION"):
        compose(["algorithm=atr", "divergence.kind=ratio"])
    typed = compose(["algorithm=atr", "divergence.kind=ratio", "divergence.delta=0.1"])
    assert typed.divergence.delta == 0.1


def test_a_setting_that_nobody_typed_is_no_error_of_the_new_kind():
    config = compose(["algorithm=dual_clip", "algorithm.surrogate.kind=clip"])
    assert config.algorithm.surrogate.model_dump() == {"kind": "clip", "gradient": "pathwise"}


def test_what_all_kinds_share_stays():
    shared = compose(["grader.kind=exact", "grader.num_workers=3"]).grader
    assert (shared.kind, shared.num_workers) == ("exact", 3)
    assert compose(["grader.kind=exact"]).grader.timeout_s == compose([]).grader.timeout_s


def test_the_same_kind_typed_again_changes_nothing():
    assert compose(["algorithm=atr", "divergence.kind=kl3"]) == compose(["algorithm=atr"])


def test_a_setting_of_the_old_kind_that_was_null_is_left_behind_too():
    assert compose(["reward=correctness", "reward.kind=format"]).reward.model_dump() == {"kind": "format"}
