"""Atrium's methods in prime-rl: a custom loss with the `import_path` `atrium.peers.prime_rl.loss`.

prime-rl calls the loss for one sequence at a time, adds the losses, and divides by the number of tokens of
the batch. Ratios are relative to the log-probabilities of the engine that sampled. Advantages come from
prime-rl's orchestrator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from atrium.base.errors import ConfigError
from atrium.method.reductions import Totals
from atrium.peers.interface import LoadedMethod, Tensors, load_method
from atrium.peers.trainers import PRIME_RL

_SUM = Totals(tokens=1, rows=1, groups=1)


def loss(inputs: Any, *, method: str, settings: Sequence[str] = ()) -> Any:  # noqa: ANN401 - prime-rl's
    """Return the `LossOutputs` of a method for one sequence's `LossInputs`.

    `method` is the name of a method or the path of a method file. `method` and `settings` are the `kwargs` of
    `[trainer.loss]`. Raises `ConfigError` if the method needs inputs that prime-rl does not provide, or if
    prime-rl passes token weights, which the method determines itself.
    """
    from prime_rl.trainer.rl.loss import LossOutputs

    if inputs.loss_weights is not None:
        raise ConfigError(
            f"loss_weights cannot be used, since {method} determines the weights of tokens itself; "
            "remove loss_weights"
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
    means = {quantity.name: mean for quantity, mean in output.means().items()}
    return LossOutputs(loss=output.loss, metrics=means)


@cache
def _load(method: str, settings: tuple[str, ...]) -> LoadedMethod:
    loaded = load_method(method, *settings)
    PRIME_RL.check(loaded.method)
    return loaded
