"""A search for settings with which a run fits into memory, using the predicted memory of each candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from atrium.base.errors import ConfigError
from atrium.base.records import MemoryItem
from atrium.config.own_files import override_text
from atrium.config.schema import RunConfig
from atrium.engines.settings import DecoderSettings, VllmSettings
from atrium.models.settings import HubModelSettings, LoraSettings
from atrium.planning.memory import peak_by_phase

Plan = Callable[[RunConfig], tuple[MemoryItem, ...]]
"""A function that plans a configuration's memory. It raises `ConfigError` if the run could not start."""
_Option = tuple[str, RunConfig]
"""A setting as typed on the command line, and the configuration with this setting."""
_Change = Callable[[RunConfig], Iterator[_Option]]
"""A function that yields the alternatives for one kind of change in order of increasing cost."""


def changed(config: RunConfig, **sections: Mapping[str, object]) -> RunConfig:
    """Return a copy of the configuration in which some settings have new values.

    `sections` maps the names of sections to the new values of their settings, as in `compute={"offload":
    True}`. The values are not validated.
    """
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    )


def _with(config: RunConfig, section: str, name: str, value: object) -> _Option:
    """Return a setting as typed on the command line, and a copy of the configuration with this setting."""
    return f"{section}.{name}={override_text(value)}", changed(config, **{section: {name: value}})


def fitting_changes(config: RunConfig, plan: Plan, num_bytes: float) -> tuple[str, ...] | None:
    """Return a few settings with which every phase fits into `num_bytes`, in order of increasing cost.

    `plan` computes the memory of a configuration. The settings are overrides as typed on the command line.
    The result is empty if the configuration already fits, and None if no known change makes it fit.
    """
    taken, excess = _apply(config, _CHANGES, plan, num_bytes)
    if excess > 0:
        return None
    for change in list(taken):  # an earlier change may be unnecessary after a later one
        others = [other for other in taken if other is not change]
        found, excess = _apply(config, others, plan, num_bytes)
        if excess == 0:
            taken = found
    return tuple(taken.values())


def _apply(
    config: RunConfig, changes: Sequence[_Change], plan: Plan, num_bytes: float
) -> tuple[dict[_Change, str], float]:
    """Apply the changes one after the other until the plan fits.

    Returns the changes that were made, each with its setting as typed, and the remaining excess in bytes.
    """

    def excess(run: RunConfig) -> float:
        """Return the bytes above the limit, summed over phases.

        The result is infinity if the run could not start.
        """
        try:
            peaks = peak_by_phase(plan(run)).values()
        except ConfigError:  # for example, an engine's share of memory is too small for one completion
            return math.inf
        return sum(max(0.0, peak - num_bytes) for peak in peaks)

    taken: dict[_Change, str] = {}
    left = excess(config)
    for change in changes:
        best: _Option | None = None
        for text, option in change(config) if left > 0 else ():
            if (lower := excess(option)) < left:
                best, left = (text, option), lower
            if left == 0:
                break
        if best is not None:
            taken[change], config = best
    return taken, left


def _decode_fewer(config: RunConfig) -> Iterator[_Option]:
    rollout = config.rollout
    if isinstance(rollout, DecoderSettings):
        longest = max(rollout.max_new_tokens, config.evaluation.max_new_tokens)
        for tokens in _halves(rollout.max_batch_tokens or 1 << 22, least=2 * longest):
            yield _with(config, "rollout", "max_batch_tokens", tokens)


def _recompute(config: RunConfig) -> Iterator[_Option]:
    if config.compute.recompute_activations is not True:
        yield _with(config, "compute", "recompute_activations", True)


def _pass_fewer(config: RunConfig) -> Iterator[_Option]:
    for tokens in _halves(config.compute.max_micro_batch_tokens, least=config.rollout.max_new_tokens):
        yield _with(config, "compute", "micro_batch_tokens", tokens)


def _share_less(config: RunConfig) -> Iterator[_Option]:
    rollout = config.rollout
    if isinstance(rollout, VllmSettings) and rollout.kv_cache_mb is None:
        for percent in range(int(100 * rollout.gpu_memory_fraction) - 1, 0, -1):
            yield _with(config, "rollout", "gpu_memory_fraction", percent / 100)


def _split(config: RunConfig) -> Iterator[_Option]:
    rollout, num_processes = config.rollout, config.compute.num_processes
    if isinstance(rollout, VllmSettings):
        for number in range(rollout.tensor_parallel + 1, num_processes + 1):
            if num_processes % number == 0:
                yield _with(config, "rollout", "tensor_parallel", number)


def _sleep(config: RunConfig) -> Iterator[_Option]:
    rollout = config.rollout
    may_sleep = config.compute.device == "cuda" and not rollout.overlaps
    if isinstance(rollout, VllmSettings) and may_sleep and not rollout.sleeps:
        yield _with(config, "rollout", "sleep_level", 1)


def _lighten_state(config: RunConfig) -> Iterator[_Option]:
    is_alone = config.compute.world_size == 1
    if config.optimizer.kind != "adamw" or config.compute.offload:
        return
    if is_alone:
        yield "optimizer=adamw_8bit", changed(config, optimizer={"kind": "adamw_8bit"})
    if config.compute.device == "cuda":
        yield _with(config, "compute", "offload", True)


def _adapt(config: RunConfig) -> Iterator[_Option]:
    model, kind = config.model, config.optimizer.kind
    if isinstance(model, HubModelSettings) and model.lora is None and config.compute.world_size == 1:
        if kind == "adamw_bf16":
            return
        yield (
            "'model.lora={rank: 16, alpha: 32}'",
            changed(config, model={"lora": LoraSettings(rank=16, alpha=32.0)}),
        )


def _spread(config: RunConfig) -> Iterator[_Option]:
    compute, num_prompts = config.compute, config.rollout.num_prompts
    may_spread = config.optimizer.kind == "adamw" and config.model.lora is None and compute.on_oom == "stop"
    if compute.device != "cuda" or compute.num_nodes > 1 or not may_spread:
        return
    for number in (2, 4, 8):
        if number > compute.num_processes and num_prompts % number == 0:
            yield (
                f"compute=node compute.num_processes={number}",
                changed(config, compute={"num_processes": number}),
            )


_CHANGES: tuple[_Change, ...] = (
    _decode_fewer,
    _recompute,
    _pass_fewer,
    _share_less,
    _split,
    _sleep,
    _lighten_state,
    _adapt,
    _spread,
)
"""Changes in order of cost: smaller caches, slower steps, lower precision, fewer trained parameters."""


def _halves(largest: int, *, least: int) -> Iterator[int]:
    """Yield the powers of two below `largest` in decreasing order, none of them smaller than `least`."""
    tokens = 1 << (largest - 1).bit_length()
    while (tokens := tokens // 2) >= least:
        yield tokens
