"""Training steps on scripted batches, as one process or as a rank of several: `updates.py OUT`.

Models are float64, so that what differs between numbers of ranks is rounding at 1e-16, and any error of
the division of work is visible beside it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tests.train.conftest import OPTIMIZER, exact_model, random_groups, rows_of, tiny_policy

from atrium.base.metrics import is_repeatable
from atrium.config.compose import compose, from_json, to_json
from atrium.method.objective import Objective
from atrium.models.lora import add_lora
from atrium.models.settings import LoraSettings
from atrium.models.shards import full_tensor, local_tensor
from atrium.train.guard.faults import FaultHandling
from atrium.train.measure.measurements import Measurements
from atrium.train.update.compiled_blocks import CompiledBlocks
from atrium.train.update.divergence_meter import meter_of
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer
from atrium.train.update.reference import UnadaptedForward
from atrium.train.update.update import UpdateSettings
from atrium.train.update.updater import PolicyUpdater

PASSES = ("packing", "recomputes", "compiled", "exchanges_once")
MIXED = ((1, 0, 0), (1, 1, 1), (0, 1), (0, 0, 0))


@dataclass(frozen=True)
class Case:
    """A training step: the method, how it is cut, and the batch."""

    overrides: tuple[str, ...]
    settings: dict = field(default_factory=lambda: {"num_minibatches": 2, "num_epochs": 2})
    groups: dict = field(default_factory=dict)
    trains: tuple[bool, ...] | None = None
    poison: bool = False
    num_shards: int | None = None
    trained: str = "gpt2"
    """The model: the exact one, or `lora` or `adamw_bf16` on a Qwen3 with float32 inside."""

    @property
    def is_exact(self):
        """Whether all of it computes in float64."""
        return self.trained == "gpt2"

    def model(self, seed):
        """The model with the weights of a seed."""
        if self.is_exact:
            return exact_model(seed=seed)
        model = tiny_policy(seed).model
        if self.trained == "adamw_bf16":
            return model.to(torch.bfloat16)
        model = model.double()
        add_lora(model, LoraSettings(rank=3, alpha=6.0), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for name, value in model.named_parameters():
            value.data = value.data.double()
            if ".lora_B." in name:  # zeros, with which A has no gradient
                value.data = 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return model

    @property
    def optimizer(self):
        """The optimizer's settings."""
        return OPTIMIZER.model_copy(update={"kind": "adamw_bf16"} if self.trained == "adamw_bf16" else {})


METHODS = (
    "grpo",
    "atr",
    "gspo",
    "gvpo",
    "clip_cov",
    "reinforce_plus_plus",
    "dppo_top_k_tv",
    "grpo_kl",
)
REDUCTIONS = (
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "group_unbiased_token_sum",
)
CASES = {
    **{method: Case((f"algorithm={method}",)) for method in METHODS},
    **{
        kind: Case(("algorithm=grpo", f"algorithm.reduction={{kind: {kind}}}"))
        for kind in REDUCTIONS
    },
    "entropy bonus": Case(("algorithm=grpo", "regularizer=entropy")),
    "small micro-batches": Case(("algorithm=atr",), {"num_epochs": 2, "micro_batch_tokens": 20}),
    "padded": Case(("algorithm=atr",), {"packing": False, "micro_batch_tokens": 40}),
    "recomputed": Case(("algorithm=atr",), {"behavior_logprobs": "recompute", "num_epochs": 2}),
    "activations again": Case(("algorithm=atr",), {"recomputes": True, "micro_batch_tokens": 40}),
    "compiled": Case(("algorithm=atr",), {"compiled": True, "micro_batch_tokens": 60}),
    "compiled, activations again": Case(
        ("algorithm=atr",), {"compiled": True, "recomputes": True, "micro_batch_tokens": 60}
    ),
    "one exchange": Case(
        ("algorithm=atr",), {"exchanges_once": True, "num_epochs": 2, "micro_batch_tokens": 20}
    ),
    "activations again, padded": Case(
        ("algorithm=grpo",), {"recomputes": True, "packing": False, "micro_batch_tokens": 60}
    ),
    "uneven": Case(("algorithm=grpo",), {"micro_batch_tokens": 30}, {"longest": 50, "seed": 5}),
    "one row": Case(("algorithm=grpo_kl",), {}, {"rewards": ((1,),)}),
    "two rows": Case(("algorithm=gvpo",), {}, {"rewards": ((1, 0),)}),
    "skipped groups": Case(
        ("algorithm=grpo", "algorithm.group_filter.kind=skip"),
        {"num_epochs": 2, "micro_batch_tokens": 60},
        {"rewards": MIXED},
        trains=(True, False, True, False),
    ),
    "not finite": Case(("algorithm=grpo",), {"num_minibatches": 2}, poison=True),
    "replicas": Case(("algorithm=grpo_kl",), {"num_epochs": 2, "micro_batch_tokens": 40}, num_shards=2),
    "adapters": Case(("algorithm=grpo_kl",), {"num_epochs": 2, "micro_batch_tokens": 40}, trained="lora"),
    "bfloat16 weights": Case(("algorithm=atr",), {"num_epochs": 2}, trained="adamw_bf16"),
}  # fmt: skip


def compose_cases():
    """The configuration of every case, as JSON: composing takes longer than running one."""
    return {name: to_json(compose(["debug=tiny_steps", *case.overrides])) for name, case in CASES.items()}


def run_case(case, config, ranks):
    """The step's metrics, weights, gradient norm and traces, and which names were not finite."""
    objective = Objective(config.method)
    model = case.model(3)
    groups = random_groups(**case.groups)
    rows = rows_of(groups, case.trains, model=case.model(3), spread=0.3)
    if case.poison:  # one advantage, so that one rank alone meets it
        rows.batch.reward_B[0] = torch.nan
    passes = {key: case.settings[key] for key in PASSES if key in case.settings}
    told = []
    forward = _forward(case, model, ranks, passes, objective)
    updater = PolicyUpdater(
        objective=objective,
        forward=forward,
        optimizer=PolicyOptimizer(model, case.optimizer, num_steps=10),
        settings=UpdateSettings(
            **{
                "num_minibatches": 1,
                "num_epochs": 1,
                "micro_batch_tokens": 100_000,
                "behavior_logprobs": "engine",
                "seed": 0,
                **{key: value for key, value in case.settings.items() if key not in passes},
            }
        ),
        reference_forward=_reference(forward, case, ranks, passes),
        faults=FaultHandling(max_skipped=9, log=told.append),
        ranks=ranks,
    )
    measurements = Measurements()
    output = updater.step(
        rows, objective.initial_state(), step=1, measurements=measurements, trace=True
    )  # fmt: skip
    assert all(parameter.grad is None for parameter in model.parameters())
    values = {quantity.name: value for quantity, value in measurements.values().items()}
    histogram = measurements.ratio_histogram()
    weights = torch.cat([full_tensor(value.detach()).flatten() for value in model.parameters()])
    tensors = {
        "weights": weights,
        "change": weights - torch.cat([value.detach().flatten() for value in case.model(3).parameters()]),
    }
    for name in ("ratio", "clipped", "entropy"):
        trace_BT = torch.from_numpy(np.nan_to_num(getattr(output.traces, f"{name}_BT"), nan=-1.0))
        tensors[name] = torch.where(rows.batch.mask_BT, trace_BT, 0)
    record = {
        "metrics": {name: value for name, value in values.items() if is_repeatable(name)},
        "histogram": None if histogram is None else [histogram.positive, histogram.negative],
        "told": told,
        "num_updates": output.num_updates,
    }
    return record, tensors


def _forward(case, model, ranks, passes, objective):
    meter = None if objective is None else meter_of(objective.method.divergence)
    # torch traces the blocks and their backward passes but does not change their arithmetic.
    blocks = CompiledBlocks(model, "aot_eager") if passes.get("compiled") else None
    others = {key: value for key, value in passes.items() if key in ("packing", "recomputes")}
    return PolicyForward(
        model, temperature=1.0, meter=meter, sharded=_sharded(case, model, ranks), compiled=blocks, **others
    )


def _sharded(case, model, ranks):
    if ranks.is_alone:
        return None
    from atrium.train.ranks.sharding import mesh_of, shard

    mesh = mesh_of("cpu", ranks.size, case.num_shards or ranks.size)
    sharded = shard(
        model, mesh, dtype=next(model.parameters()).dtype,
        exchanges_once="exchanges_once" in case.settings,
    )  # fmt: skip
    assert all(local_tensor(value).numel() < value.numel() for value in model.parameters())
    return sharded


def _reference(forward, case, ranks, passes):
    """Another model, or the policy without its adapters."""
    if case.trained == "lora":
        return UnadaptedForward(forward.model, temperature=1.0, sharded=forward.sharded, **passes)
    return _forward(case, case.model(4), ranks, passes, None)


def main(folder, *names):
    """Run every case as a rank, and write what rank 0 has."""
    from atrium.train.ranks.connected_ranks import ConnectedRanks

    torch.set_num_threads(1)
    ranks = ConnectedRanks(os.environ, device="cpu", timeout_s=60)
    assert not ranks.is_alone
    configs = json.loads((folder / "configs.json").read_text(encoding="utf-8"))
    records = {}
    for name in names or CASES:
        case = CASES[name]
        record, tensors = run_case(case, from_json(configs[name]), ranks)
        everyone = ranks.gather(json.dumps(record, sort_keys=True))
        assert len(set(everyone)) == 1, f"{name}: the ranks disagree"
        records[name] = record
        if ranks.is_first:
            save_file(
                {key: value.contiguous() for key, value in tensors.items()}, folder / f"{name}.safetensors"
            )
    if ranks.is_first:
        (folder / "records.json").write_text(json.dumps(records), encoding="utf-8")
    ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
