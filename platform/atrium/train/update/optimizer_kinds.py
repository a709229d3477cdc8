"""The kinds of AdamW, and the state of each in a checkpoint, as plain tensors per parameter.

`adamw` is torch's fused AdamW, with 8 bytes of float32 state per parameter. `adamw_8bit` (bitsandbytes) keeps
both moments in 8 bits with a scale per block of 256 weights: 2 bytes per parameter. `adamw_bf16` (optimi) is
for bfloat16 weights. It keeps both moments and the rounding error of each update (Kahan summation): 6 bytes
per parameter. Therefore it needs neither float32 weights nor stochastic rounding.

Sources: arXiv 2110.02861 (8 bits per block), arXiv 2010.06192 (Kahan summation for weights in bfloat16).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from atrium.base.errors import MissingDependencyError, install_command
from atrium.train.settings import AdamWSettings

_TABLE = "qmap"
PER_BLOCK = ("absmax", _TABLE)
"""Prefixes of state quantities with one value per block of weights, or one table for all weights."""

_STEP = "step"


def build_adamw(settings: AdamWSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer of `settings.kind`; raises `MissingDependencyError` if its package is missing."""
    kind = settings.kind
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }
    match kind:
        case "adamw":
            return torch.optim.AdamW(parameters, fused=True, **options)
        case "adamw_8bit":
            built = _imported("bitsandbytes.optim", "bitsandbytes", kind).AdamW8bit(parameters, **options)
        case "adamw_bf16":
            built = _imported("optimi", "torch-optimi", kind).AdamW(parameters, kahan_sum=True, **options)
    return built  # type: ignore[no-any-return]


def state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the tensors of a parameter's state by name. There are none before its first update.

    State shared by parameters (bitsandbytes' tables, the count of a group) is cloned, since stored tensors
    must not share memory. Step counts become tensors.
    """
    state = optimizer.state.get(parameter, {})
    if not state:
        return {}
    step = _group(optimizer, parameter).get(_STEP)
    found = dict(state) if step is None else {_STEP: step.clone(), **state}
    return {
        name: value.clone() if name.startswith(_TABLE) else torch.as_tensor(value)
        for name, value in found.items()
        if value is not None
    }


def restore_state(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, state: Mapping[str, Tensor]
) -> None:
    """Load a parameter's state, as returned by `state_of`.

    Tensors are cloned, so that they own aligned storage: a view of a memory-mapped file would change the last
    bits of sums.
    """
    found: dict[str, Any] = {name: value.clone() for name, value in state.items()}
    group = _group(optimizer, parameter)
    if "setup" in group:  # optimi counts the steps of a group
        group[_STEP], group["setup"] = found.pop(_STEP), True
    elif not isinstance(optimizer, torch.optim.AdamW):
        found[_STEP] = int(found[_STEP])  # bitsandbytes counts in Python
    # Optimizers other than torch's expect the step count on the host.
    kept = () if isinstance(optimizer, torch.optim.AdamW) else (_STEP,)
    optimizer.state[parameter] = {
        name: value.to(parameter.device) if isinstance(value, Tensor) and name not in kept else value
        for name, value in found.items()
    }


def _group(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(one is parameter for one in group["params"]))


def _imported(module: str, package: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"optimizer.kind={kind} requires {package}, which cannot be imported ({error}); run "
            f"{install_command('optimizers')}, or choose optimizer=adamw"
        ) from error
