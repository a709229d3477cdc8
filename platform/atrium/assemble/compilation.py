"""The choice between compiled and uncompiled decoder blocks if `compute.compile` is `auto`."""

from __future__ import annotations

from transformers import PreTrainedModel

from atrium.assemble.run import Run
from atrium.base.compilers import missing_compilers
from atrium.config.schema import RunConfig
from atrium.engines.settings import VllmSettings
from atrium.models.blocks import decoder_blocks


def settle_compilation(run: Run, model: PreTrainedModel) -> Run:
    """Replace `compute.compile=auto` by true or false, and return the changed run.

    The choice is recorded in config.json. It depends on `compute.packing`, which must already be decided.
    """
    if run.config.compute.compile != "auto":
        return run
    # All ranks use the choice of rank 0.
    obstacle: str | None = run.ranks.from_first(_obstacle(run.config, model))
    if obstacle is None:
        run.log("updates compile the decoder blocks (compute.compile=auto), which takes a minute once")
    else:
        run.log(f"updates do not compile the decoder blocks (compute.compile=auto): {obstacle}")
    return run.with_compute(compile=obstacle is None)


def _obstacle(config: RunConfig, model: PreTrainedModel) -> str | None:
    if config.compute.packing is False:
        return "padded rows cannot be compiled"
    if isinstance(config.rollout, VllmSettings) and config.rollout.enforce_eager:
        return "rollout.enforce_eager=true disables torch's compilation in this process"
    if not decoder_blocks(model):
        return f"a model of type {type(model).__name__} does not declare its blocks"
    missing = missing_compilers(config.compute.device)
    return f"compilation requires {' and '.join(missing)}" if missing else None
