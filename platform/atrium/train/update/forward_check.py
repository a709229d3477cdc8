"""A check before training that an update computes the same log-probabilities as the whole model.

Without the check, the trainer's log-probabilities could differ from the engine's unnoticed: some
architectures scale or cap their logits after the LM head, some attend to later tokens, and some cannot be
packed.

Axes: B rows, L tokens of a row, D width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atrium.base.errors import ConfigError
from atrium.models.context import windows
from atrium.train.update.forward import PolicyForward
from atrium.train.update.packing_probe import packing_obstacle

_SHORT, _LONG = 32, 64
"""Length of the checked rows in tokens: in the run's precision, and in float32 if no window is longer."""
_NEIGHBORS = 16
_ERROR, _HALF_ERROR = 1e-3, 0.05
"""Maximum difference of a state, relative to its norm, in single and half precision.

Measured: rounding gives 1e-6 and 0.01 in 28 random and 30 pretrained layers, wrong masks and positions give
0.06 to 1.
"""

_Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class PackingFinding:
    """The result of checking a model on packed tokens.

    `fault` is the reason why the model does not support packed tokens, or None if it does. `evidence`
    describes the comparison.
    """

    fault: str | None
    evidence: str = ""


def check_model(forward: PolicyForward, longest: int) -> None:
    """Raise `ConfigError` for a model that cannot be trained.

    The LM head applied to the last hidden states must give the model's logits, and hidden states must not
    depend on later tokens. `longest` is the number of tokens in the run's longest row.
    """
    name = type(forward.model).__name__
    token_BL = _rows(forward, min(_SHORT, longest))
    logits, headed = _pair(forward, lambda: _logits_both_ways(forward, token_BL))
    if not torch.allclose(logits.float(), headed.float(), atol=1e-4, rtol=1e-4):
        raise ConfigError(
            f"the model type {name} changes logits after the LM head, which training does not support; "
            "choose another model"
        )
    length = _long(forward, longest)
    with _float32(forward) as allowed:
        error = _error(forward, lambda: _with_and_without_later_tokens(forward, length))
    if not error <= allowed:  # which excludes NaN
        raise ConfigError(
            f"the model type {name} is not causal, since the states of a token depend on later tokens "
            f"(they change by {error:.1%}), so it cannot be trained; choose another model"
        )


def find_packing(forward: PolicyForward, longest: int) -> PackingFinding:
    """Check whether the model can be trained on packed tokens.

    First, the attention arguments of all layers are checked. Then the hidden states of packed tokens are
    compared with those of whole rows: in the run's precision if that is a half precision, and in float32 (or
    a sharded model's own dtype). Rows of the second comparison are longer than every window or chunk in the
    model's configuration, but not longer than the run's rows.
    """
    obstacles: list[str] = []

    def probed() -> tuple[()]:
        obstacles.extend(filter(None, [packing_obstacle(forward.model, forward.device)]))
        return ()

    forward.run(probed)
    if obstacles:
        return PackingFinding(obstacles[0])
    short, length = min(_SHORT, longest), _long(forward, longest)
    if forward.dtype.itemsize == 2:
        with forward.autocast():
            error = _error(forward, lambda: _packed_and_whole(forward, short, pads=forward.pads))
        if not error <= _HALF_ERROR:
            return _differing(forward, error, _HALF_ERROR)
    with _float32(forward) as allowed:
        error = _error(forward, lambda: _packed_and_whole(forward, length, pads=True))
    if not error <= allowed:
        return _differing(forward, error, allowed)
    return PackingFinding(None, f"states of rows of {length} tokens differ by {error:.0e}")


def _differing(forward: PolicyForward, error: float, allowed: float) -> PackingFinding:
    return PackingFinding(
        f"{type(forward.model).__name__} computes different states on packed tokens: they differ by "
        f"{error:.1%}, but must differ by at most {allowed:.1%}"
    )


def _long(forward: PolicyForward, longest: int) -> int:
    """Return the length of the rows to compare: longer than every window, but at most `longest`."""
    named = windows(forward.text_config.to_dict())
    return min(longest, max([_LONG, *(size + 2 * _NEIGHBORS for size in named.values())]))


def _rows(forward: PolicyForward, length: int) -> Tensor:
    """Return two rows [2, L] of tokens from the whole vocabulary, with the same first half.

    Some tokens occur twice.
    """
    vocabulary, num_distinct = forward.text_config.vocab_size, length - length // 4
    place_L = torch.arange(length, device=forward.device) % max(1, num_distinct)
    token_L = place_L * max(1, vocabulary // length) % vocabulary
    half = length // 2
    return torch.stack([token_L, torch.cat([token_L[:half], token_L[half:].flip(0)])])


def _pair(forward: PolicyForward, compute: Callable[[], _Pair]) -> _Pair:
    with torch.no_grad():
        one, other = forward.run(compute)
    assert one is not None
    assert other is not None
    return one, other


def _error(forward: PolicyForward, compute: Callable[[], _Pair]) -> float:
    """Return the relative error between two computations of the states, in the worst block of tokens.

    The error of a block (at least 16 neighboring tokens, or the whole row if it is shorter) is the median
    over its tokens, because in pretrained models the activations of a few tokens grow a thousandfold and
    shrink again, so their differences are mostly rounding.
    """
    found_BTD, expected_BTD = (states.float() for states in _pair(forward, compute))
    difference_BT = (found_BTD - expected_BTD).norm(dim=-1)
    error_BT = difference_BT / expected_BTD.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    parts = error_BT.tensor_split(max(1, error_BT.shape[1] // _NEIGHBORS), dim=1)
    return max(float(part.median(dim=1).values.max()) for part in parts)


def _logits_both_ways(forward: PolicyForward, token_BL: Tensor) -> _Pair:
    """Return the whole model's logits, and the logits of its LM head on its last hidden states."""
    logits: Tensor = forward.model(input_ids=token_BL, use_cache=False).logits
    return logits, forward.head(forward.whole_states(token_BL))


def _with_and_without_later_tokens(forward: PolicyForward, length: int) -> _Pair:
    """Return the states of a row's first half, computed with and without the second half."""
    token_BL, half = _rows(forward, length), length // 2
    whole_BLD = forward.whole_states(token_BL)[:1, :half]
    return whole_BLD, forward.whole_states(token_BL[:1, :half])


def _packed_and_whole(forward: PolicyForward, length: int, *, pads: bool) -> _Pair:
    """Return the states that predict the second halves of two rows, packed and from the whole model.

    `pads` is whether attention pads the packed rows.
    """
    token_BL, half = _rows(forward, length), length // 2
    packed_BTD = forward.packed_states(token_BL, half, pads=pads)
    return packed_BTD, forward.whole_states(token_BL)[:, half - 1 : -1]


@contextmanager
def _float32(forward: PolicyForward) -> Iterator[float]:
    """Compute in float32, unless the model is sharded over ranks; yield the largest acceptable error."""
    if forward.is_sharded:
        yield _HALF_ERROR if forward.dtype.itemsize == 2 else _ERROR
        return
    with ExitStack() as stack:
        for module in forward.model.modules():
            stack.enter_context(_float32_module(module))
        yield _ERROR


@contextmanager
def _float32_module(module: nn.Module) -> Iterator[None]:
    """Convert a module's own half-precision parameters to float32 during each of its calls."""
    half = [value for value in module.parameters(recurse=False) if value.dtype.itemsize == 2]
    if not half:
        yield
        return
    kept = [value.data for value in half]

    def widen(*_: object) -> None:
        for value in half:
            value.data = value.data.float()

    def restore(*_: object) -> None:
        for value, data in zip(half, kept, strict=True):
            value.data = data

    handles = [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
