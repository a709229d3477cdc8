"""Presets composed from the shipped YAML files, and seeded batches to run them on. Float64 throughout."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from atrium.config.presets import divergence_from
from atrium.method.algorithm import Algorithm
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.method.regularizers import Regularizer

CONF = Path(__file__).resolve().parents[2] / "conf"
PRESETS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))


@dataclass(frozen=True)
class Executed(Method):
    """A method that is executed."""

    @property
    def objective(self) -> Objective:
        return Objective(self)


@cache
def composed(name: str, *overrides: str) -> Executed:
    """What `algorithm=name` and further overrides compose to, before checks of combinations."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        if overrides:
            node = hydra.compose("config", [f"algorithm={name}", *overrides])
        else:  # the groups that matter alone compose in half the time
            node = hydra.compose(
                None,
                ["+divergence=ratio", "+regularizer=none", "+rollout=transformers", f"+algorithm={name}"],
            )
        plain = OmegaConf.to_container(node, resolve=True)
    return Executed(
        Algorithm.model_validate(plain["algorithm"]),
        divergence_from(plain["divergence"], name),
        Regularizer.model_validate(plain["regularizer"]),
    )


@dataclass(frozen=True)
class Case:
    """A rollout batch and what the policy says about its tokens."""

    batch: Batch
    policy: PolicyTokens

    def on_policy(self) -> Case:
        """The same with all anchors and the current policy equal; the reference stays."""
        current = self.policy.logprob_BT.clone()
        anchors = ("rollout_logprob_BT", "behavior_logprob_BT", "proximal_logprob_BT")
        batch = replace(self.batch, **dict.fromkeys(anchors, current))
        return Case(batch, replace(self.policy, divergence_BT=torch.zeros_like(current)))

    def without_reference(self) -> Case:
        """The same without a reference policy."""
        return replace(self, batch=replace(self.batch, reference_logprob_BT=None))

    def select(self, rows: torch.Tensor, num_tokens: int | None = None) -> Case:
        parts = {field.name: getattr(self.policy, field.name) for field in fields(PolicyTokens)}
        chosen = {
            name: value[rows][:, :num_tokens]
            for name, value in parts.items()
            if isinstance(value, torch.Tensor)
        }
        return Case(self.batch.select(rows, num_tokens), PolicyTokens(**chosen))

    def poisoned(self, value: float = torch.nan) -> Case:
        """The same with `value` at every masked position of every tensor but the mask."""
        mask_BT = self.batch.mask_BT

        def poison(part):
            chosen = {}
            for field in fields(part):
                old = getattr(part, field.name)
                is_token_tensor = isinstance(old, torch.Tensor) and old.shape == mask_BT.shape
                if is_token_tensor and old.is_floating_point():
                    chosen[field.name] = torch.where(mask_BT, old, value)
            return replace(part, **chosen)

        return Case(poison(self.batch), poison(self.policy))

    def to(self, dtype: torch.dtype) -> Case:
        def cast(part):
            chosen = {}
            for field in fields(part):
                old = getattr(part, field.name)
                if isinstance(old, torch.Tensor) and old.dim() == 2 and old.is_floating_point():
                    chosen[field.name] = old.to(dtype)
            return replace(part, **chosen)

        return Case(cast(self.batch), cast(self.policy))


def random_mask(generator: torch.Generator, num_rows: int, num_tokens: int) -> torch.Tensor:
    """Ragged rows with a few holes; every row has a token."""
    length_B1 = torch.randint(1, num_tokens + 1, (num_rows, 1), generator=generator)
    mask_BT = torch.arange(num_tokens) < length_B1
    mask_BT &= torch.rand(num_rows, num_tokens, generator=generator) > 0.15
    mask_BT[:, 0] = True
    return mask_BT


def random_case(
    seed: int = 0,
    *,
    num_groups: int = 4,
    group_size: int = 4,
    num_tokens: int = 7,
    spread: float = 0.3,
    mask_BT: torch.Tensor | None = None,
    reward_B: torch.Tensor | None = None,
) -> Case:
    """Random log-probabilities, the policy `spread` nats away from behavior, and rewards with signal."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = num_groups * group_size
    shape = (num_rows, num_tokens)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    if mask_BT is None:
        mask_BT = random_mask(generator, num_rows, num_tokens) if num_tokens else torch.zeros(shape).bool()
    if reward_B is None:
        reward_B = torch.rand(num_rows, generator=generator, dtype=torch.float64).round(decimals=1)
    behavior_BT = -0.05 - normal(1.0).abs()
    logprob_BT = (behavior_BT + normal(spread)).clamp(max=-1e-3)
    batch = Batch(
        mask_BT=mask_BT,
        reward_B=reward_B,
        group_B=torch.arange(num_groups).repeat_interleave(group_size) * 7 + 3,
        sample_key_B=torch.randint(0, 2**60, (num_rows,), generator=generator),
        rollout_logprob_BT=(behavior_BT + normal(0.05)).clamp(max=-1e-3),
        behavior_logprob_BT=behavior_BT,
        proximal_logprob_BT=behavior_BT,
        reference_logprob_BT=(behavior_BT + normal(0.2)).clamp(max=-1e-3),
        is_trained_B=torch.ones(num_rows, dtype=torch.bool),
    )
    policy = PolicyTokens(
        logprob_BT=logprob_BT, entropy_BT=normal(1.0).abs(), divergence_BT=0.1 * normal(1.0).abs()
    )
    return Case(batch, policy)


@dataclass(frozen=True)
class Step:
    """The loss of one minibatch and its gradients."""

    loss: torch.Tensor
    gradient_BT: torch.Tensor
    entropy_gradient_BT: torch.Tensor
    output: object
    prepared: object
    batch: Batch


def run_step(objective: Objective, case: Case, *, prepared=None, parts=None, scored=False) -> Step:
    """The three phases of a step on a case, in micro-batches of the given row indices if there are any."""
    batch = case.batch if scored else objective.with_advantages(case.batch)
    if prepared is None:
        policy = case.policy if objective.needs.prepare_pass else None
        prepared = objective.prepare(batch, policy, objective.initial_state())
    logprob_BT = case.policy.logprob_BT.clone().requires_grad_()
    entropy_BT = case.policy.entropy_BT.clone().requires_grad_()
    leaves = Case(batch, replace(case.policy, logprob_BT=logprob_BT, entropy_BT=entropy_BT))
    total = logprob_BT.new_zeros(())
    output = None
    for rows in [torch.arange(batch.num_rows)] if parts is None else parts:
        kept = batch.mask_BT[rows].any(dim=0).nonzero() if len(rows) else torch.zeros(0)
        longest = int(kept.max()) + 1 if parts is not None and kept.numel() else batch.mask_BT.shape[1]
        part = leaves.select(rows, longest)
        output = objective.loss(part.batch, part.policy, prepared.select(rows, longest))
        total = total + output.loss
    gradients = torch.autograd.grad(
        total, [logprob_BT, entropy_BT], allow_unused=True, materialize_grads=True
    )
    return Step(total.detach(), gradients[0], gradients[1], output, prepared, batch)


def settled_over_ranks(runs):
    """What each rank's function returns when the sums that it asks for are those over all ranks.

    Ranks are simulated by asking again with the answers known so far; every round settles one exchange.
    """
    answers: list[torch.Tensor] = []
    while True:
        asked: list[list[torch.Tensor]] = [[] for _ in runs]

        def add(value, rank, asked=asked, known=tuple(answers)):
            asked[rank].append(value)
            turn = len(asked[rank]) - 1
            return known[turn] if turn < len(known) else value

        results = [run(partial(add, rank=rank)) for rank, run in enumerate(runs)]
        sums = [torch.stack(values).sum(dim=0) for values in zip(*asked, strict=True)]
        if len(sums) == len(answers) and all(map(torch.equal, sums, answers)):
            return results
        answers = sums


def pytest_generate_tests(metafunc):
    if "preset" in metafunc.fixturenames:
        metafunc.parametrize("preset", PRESETS)


@pytest.fixture
def method(preset):
    return composed(preset)


@pytest.fixture(scope="session")
def presets():
    return PRESETS


@pytest.fixture(scope="session")
def compose_method():
    return composed


@pytest.fixture(scope="session")
def over_ranks():
    return settled_over_ranks


@pytest.fixture(scope="session")
def make_case():
    return random_case


@pytest.fixture(scope="session")
def step():
    return run_step
