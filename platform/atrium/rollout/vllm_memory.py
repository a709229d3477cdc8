"""What vLLM and the trainer beside it need of a device's memory, computed before anything is loaded.

Pure arithmetic on the shape of a model. Activations and CUDA graphs are not counted, so what passes may
still not fit; what is refused cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

from atrium.errors import EngineError

BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
"""Bytes of one number."""

# Float32 weights, to train them gradients, and AdamW's two means.
_HELD_BYTES, _GRADIENT_BYTES, _STATE_BYTES = 4, 4, 8
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What memory depends on. Tied parameters count once."""

    num_parameters: int
    num_layers: int
    num_key_value_heads: int
    head_size: int

    def cache_bytes_per_token(self, cache_dtype: str, tensor_parallel: int = 1) -> int:
        """Bytes of the key-value cache that one token takes on each of the ranks that share it."""
        num_heads = -(-self.num_key_value_heads // tensor_parallel)
        return 2 * self.num_layers * num_heads * self.head_size * BYTES[cache_dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The settings that decide what is needed.

    `cache_bytes` None takes what `engine_frac` leaves; without `trains` there is no optimiser. `num_ranks`
    share what the trainer holds, and `tensor_parallel` of them an engine. `offloads` keeps the optimiser's
    state off the device, and of several ranks all that they share.
    """

    dtype: str
    cache_dtype: str
    context_length: int
    engine_frac: float
    cache_bytes: int | None
    sleeps: bool
    trains: bool = True
    tensor_parallel: int = 1
    num_ranks: int = 1
    offloads: bool = False

    @property
    def trainer_bytes(self) -> float:
        """What the trainer holds on this device of one parameter."""
        if self.num_ranks > 1:
            return 0 if self.offloads else self._trained_bytes / self.num_ranks
        return self._trained_bytes - _STATE_BYTES * (self.offloads and self.trains)

    @property
    def _trained_bytes(self) -> int:
        return _HELD_BYTES + (_GRADIENT_BYTES + _STATE_BYTES) * self.trains


def check_memory(shape: ModelShape, plan: MemoryPlan, *, device_bytes: int) -> None:
    """Raise `EngineError`, with the setting to change, where model, cache and trainer cannot fit.

    `device_bytes` is all that the process may use: a GPU's memory, or what is free of the machine's.
    """
    weights = shape.num_parameters * BYTES[plan.dtype] // plan.tensor_parallel
    longest = shape.cache_bytes_per_token(plan.cache_dtype, plan.tensor_parallel) * plan.context_length
    trainer = shape.num_parameters * plan.trainer_bytes
    if plan.cache_bytes is not None and plan.cache_bytes < longest:
        raise EngineError(
            f"rollout.kv_cache_mb={plan.cache_bytes >> 20} holds no completion of {plan.context_length} "
            f"tokens, which takes {-(-longest >> 20)}; give at least that, or lower rollout.context_length"
        )
    engine = weights + (longest if plan.cache_bytes is None else plan.cache_bytes)
    budget = device_bytes * plan.engine_frac
    if plan.cache_bytes is None and engine > budget:
        raise EngineError(
            f"rollout.gpu_memory_fraction={plan.engine_frac:g} gives vLLM {_gb(budget)}, but the weights in "
            f"{plan.dtype} take {_gb(weights)} and one completion of {plan.context_length} tokens "
            f"{_gb(longest)}; raise it to {min(1.0, engine / device_bytes):.2f}, or lower "
            "rollout.context_length"
        )
    engine_share = engine if plan.cache_bytes is not None else budget
    if not plan.sleeps and trainer + engine_share > device_bytes:
        room = (device_bytes - trainer) / device_bytes
        advice = (
            f"lower rollout.gpu_memory_fraction to {room:.2f} or set rollout.sleep_level=1"
            if plan.cache_bytes is None and room * device_bytes > engine
            else "choose a smaller model or a machine with more memory"
        )
        raise EngineError(
            f"the policy's {'weights, gradients and optimiser state' if plan.trains else 'weights'} take "
            f"{_gb(trainer)} and vLLM {_gb(engine_share)}, but there are {_gb(device_bytes)}; {advice}"
        )


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB"
