"""Parts of one's own: a surrogate is a formula that is differentiated, a divergence of the ratio a window."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import ClassVar, Literal

import pytest
import torch

from atrium.base.section import Positive
from atrium.method.divergences import Divergence, ExplicitWindow
from atrium.method.objective import Objective
from atrium.method.regions import Region
from atrium.method.surrogates import Clip, Quadratic, SoftGate, Surrogate
from atrium.method.terms import SurrogateInputs, choose
from atrium.method.windows import Window

MINE = '''
from typing import ClassVar, Literal
from atrium.method.surrogates import Surrogate
from atrium.base.section import Positive

class ExponentialGate(Surrogate):
    """tau (1 - exp((1 - w) / tau)) A: the slope of w A at w = 1, falling off above it."""
    kind: Literal["exponential_gate"] = "exponential_gate"
    tau: Positive
    reads: ClassVar = "nothing"

    def value(self, x):
        return self.tau * (1.0 - ((1.0 - x.weight_BT) / self.tau).exp()) * x.advantage_BT
'''


@pytest.fixture(autouse=True)
def forgotten():
    """Classes that a test declares are forgotten afterwards."""
    known = {axis: dict(axis.kinds) for axis in (Surrogate, Divergence)}
    yield
    for axis, kinds in known.items():
        axis.kinds.clear()
        axis.kinds.update(kinds)


@pytest.fixture
def gate(tmp_path, monkeypatch):
    (tmp_path / "gate_of_a_test.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("gate_of_a_test").ExponentialGate(tau=0.5)
    del sys.modules["gate_of_a_test"]


@pytest.fixture
def tokens():
    """4,000 tokens on both sides of every bound, with advantages of both signs and a few of 0."""
    generator = torch.Generator().manual_seed(3)
    log_w_BT, advantage_BT = torch.randn(2, 40, 100, generator=generator, dtype=torch.float64)
    advantage_BT[0, :5] = 0.0
    w_BT = (0.6 * log_w_BT).exp()
    region = Region.within(w_BT, 0.8, 1.28)
    return SurrogateInputs(
        gate_BT=w_BT,
        weight_BT=w_BT,
        log_weight_BT=0.6 * log_w_BT,
        logprob_BT=-torch.ones_like(w_BT),
        advantage_BT=advantage_BT,
        rewarded_BT=advantage_BT > 0.0,
        clipped_ratio_BT=region.crossed_bound(w_BT),
        region=region,
    )


def by_formula(surrogate, formula):
    """The surrogate with a formula in place of its closed form."""

    class Formula(Surrogate):
        kind: Literal["formula"] = "formula"

        def value(self, x):
            return formula(surrogate, x)

    return Formula()


def soft_gate(surrogate, x):
    tau_BT = x.by_sign(surrogate.tau_positive, surrogate.tau_negative)
    return 4.0 / tau_BT * (tau_BT * (x.weight_BT - 1.0)).sigmoid() * x.advantage_BT


def clip(surrogate, x):
    clipped_BT = x.weight_BT.clamp(x.region.lower, x.region.upper)
    return torch.minimum(x.weight_BT * x.advantage_BT, clipped_BT * x.advantage_BT)


def quadratic(surrogate, x):
    width_BT = choose(x.gate_BT > 1.0, x.region.upper - 1.0, 1.0 - x.region.lower, x.gate_BT)
    pull_BT = x.advantage_BT.abs() * (x.weight_BT - 1.0) ** 2 / (2.0 * width_BT)
    return x.weight_BT * x.advantage_BT - pull_BT


@pytest.mark.parametrize(
    ("surrogate", "formula"),
    [(SoftGate(tau_positive=1.0, tau_negative=1.05), soft_gate), (Clip(), clip), (Quadratic(), quadratic)],
    ids=["soft_gate", "clip", "quadratic"],
)
def test_a_formula_has_the_coefficient_of_its_closed_form(tokens, surrogate, formula):
    closed, found = surrogate.terms(tokens), by_formula(surrogate, formula).terms(tokens)
    torch.testing.assert_close(found.coefficient_BT, closed.coefficient_BT, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(found.value_BT, closed.value_BT, rtol=1e-14, atol=1e-15)
    assert torch.equal(found.dropped_BT, closed.dropped_BT)
    assert not found.value_BT.requires_grad


def test_a_formula_of_the_log_probability_is_differentiated_too(tokens):
    """The derivative by log w is that by log pi: of a regression on log pi it is the residual."""
    found = by_formula(None, lambda _, x: -0.5 * (x.logprob_BT - x.advantage_BT) ** 2).terms(tokens)
    torch.testing.assert_close(found.coefficient_BT, tokens.advantage_BT - tokens.logprob_BT)


def test_a_formula_that_does_not_depend_on_the_policy_is_an_error(tokens):
    with pytest.raises(TypeError, match=r"Formula\.value must depend on the policy"):
        by_formula(None, lambda _, x: x.gate_BT * x.advantage_BT).terms(tokens)


def test_a_class_without_formula_and_function_is_an_error(tokens):
    class Silent(Surrogate):
        kind: Literal["silent"] = "silent"

    with pytest.raises(NotImplementedError, match="Silent must define value or terms"):
        Silent().terms(tokens)


def test_a_surrogate_of_ones_own_obeys_the_laws_of_an_objective(gate, compose_method, make_case, step):
    objective = Objective(compose_method("sapo").with_parts(surrogate=gate))
    case = make_case(0)
    whole = step(objective, case)
    weight_BT = (case.policy.logprob_BT - case.batch.behavior_logprob_BT).exp()
    slope_BT = weight_BT * ((1.0 - weight_BT) / gate.tau).exp() * whole.batch.advantage_BT
    expected_BT = -whole.prepared.row_factor_B[:, None] * torch.where(case.batch.mask_BT, slope_BT, 0.0)
    torch.testing.assert_close(whole.gradient_BT, expected_BT, rtol=1e-13, atol=1e-16)
    split = step(objective, case, parts=[torch.arange(5), torch.arange(5, 16)])
    torch.testing.assert_close(split.gradient_BT, whole.gradient_BT, rtol=1e-12, atol=1e-15)
    assert torch.equal(step(objective, case.poisoned()).gradient_BT, whole.gradient_BT)


def test_a_divergence_of_the_ratio_needs_no_more_than_its_window(compose_method, make_case, step):
    class LogarithmicRange(Divergence):
        """|log w| <= width."""

        kind: Literal["logarithmic_range"] = "logarithmic_range"
        width: Positive
        has_window: ClassVar[bool] = True

        def window(self):
            return Window(2.0**-self.width, 2.0**self.width)

    grpo, case = compose_method("grpo"), make_case(1)
    steps = [
        step(Objective(type(grpo)(grpo.algorithm, divergence)), case)
        for divergence in (LogarithmicRange(width=0.25), ExplicitWindow(lower=2.0**-0.25, upper=2.0**0.25))
    ]
    assert torch.equal(steps[0].gradient_BT, steps[1].gradient_BT)
    assert steps[0].output.details.dropped_BT.any()


@pytest.mark.full
def test_a_class_that_is_declared_before_the_settings_are_read_trains(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    settings = ["algorithm=sapo", "algorithm.surrogate.kind=exponential_gate"]
    settings += ["+algorithm.surrogate.tau=0.5", "debug=tiny_steps", "tracking.figures=false", "num_steps=1"]
    code = f"import sys, mine\nfrom atrium.cli import main\nsys.exit(main(['train', *{settings!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (config,) = tmp_path.glob("runs/*/*/config.json")
    surrogate = json.loads(config.read_text())["algorithm"]["surrogate"]
    assert surrogate == {"kind": "exponential_gate", "tau": 0.5}
    lines = (config.parent / "metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line)["optimizer/grad_norm"] > 0 for line in lines if line)
