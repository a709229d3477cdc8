"""Methods in prime-rl: a custom loss, whose `import_path` is `atrium.peers.prime_rl.loss`.

prime-rl calls it for one sequence at a time, adds the losses, and divides by the tokens of the batch. Its
ratios refer to the policy that sampled, by the engine's log-probabilities, and its advantages come from the
orchestrator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from atrium.base.errors import ConfigError
from atrium.base.metrics import Reduction
from atrium.method.reductions import Totals
from atrium.peers.interface import LoadedMethod, Tensors, load_method
from atrium.peers.trainers import PRIME_RL

_SUM = Totals(tokens=1, rows=1, groups=1)


def loss(inputs: Any, *, method: str, settings: Sequence[str] = ()) -> Any:  # noqa: ANN401 - prime-rl's
    """Return the `LossOutputs` of one sequence's `LossInputs`, for the method of this name or file.

    `method` and `settings` are the `kwargs` of `[trainer.loss]`. Raises `ConfigError` for a method that needs
    inputs that prime-rl does not provide, and for token weights, which a method determines itself.
    """
    from prime_rl.trainer.rl.loss import LossOutputs

    if inputs.loss_weights is not None:
        raise ConfigError(
            f"prime-rl weights tokens by loss_weights, which {method} determines itself; remove them"
        )
    tensors: Tensors = {
        "advantage_BT": inputs.advantages[None],
        "old_logprob_BT": inputs.inference_logprobs[None],
        "rollout_logprob_BT": inputs.inference_logprobs[None],
    }
    if inputs.ref_logprobs is not None:
        tensors["reference_logprob_BT"] = inputs.ref_logprobs[None]
    output = _load(method, tuple(settings)).loss(
        inputs.trainer_logprobs[None], inputs.loss_mask[None], totals=_SUM, **tensors
    )
    means = {
        quantity.name: total / count.clamp(min=1)
        for quantity, (total, count) in output.sums.items()
        if quantity.reduction is Reduction.MEAN
    }
    return LossOutputs(loss=output.loss, metrics=means)


@cache
def _load(method: str, settings: tuple[str, ...]) -> LoadedMethod:
    loaded = load_method(method, *settings)
    PRIME_RL.check(loaded.method)
    return loaded
