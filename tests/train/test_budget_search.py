"""The search for the tokens of a micro-batch: what it tries, what it takes, and that it leaves no trace."""

from __future__ import annotations

import pytest
import torch

from atrium.train.guard.budget_search import largest_budget, update_fits, worst_rows
from atrium.train.update.forward import PolicyForward


def _search(capacity, **bounds):
    tried = []

    def fits(tokens):
        tried.append(tokens)
        return tokens <= capacity

    return largest_budget(fits, **bounds), tried


def test_what_fits_at_once_with_its_margin_is_taken_whole():
    assert _search(20_000, longest=512, largest=16_384) == (16_384, [18_205])


@pytest.mark.parametrize("capacity", [600, 1000, 3000, 9999, 16_000, 16_384, 18_204])
def test_less_memory_gives_nearly_all_that_fits_less_a_margin(capacity):
    found, tried = _search(capacity, longest=512, largest=16_384)
    assert 0.75 * capacity <= found <= 0.9 * capacity or found == 512
    assert len(tried) < 12


def test_a_row_that_does_not_fit_leaves_nothing():
    assert _search(500, longest=512, largest=16_384)[0] is None
    assert _search(500, longest=512, largest=256) == (None, [512])


def test_a_row_longer_than_a_minibatch_is_the_least_that_is_tried():
    assert _search(600, longest=512, largest=256) == (512, [512])


@pytest.mark.parametrize(("num_tokens", "lengths"), [(10, [10]), (25, [10, 10, 5]), (31, [10, 10, 10, 3])])
def test_rows_of_the_greatest_length_hold_the_tokens(num_tokens, lengths):
    rows = worst_rows(num_tokens, longest=10, device=torch.device("cpu"))
    assert rows.num_tokens_B.tolist() == lengths
    assert rows.batch.mask_BT.sum(1).tolist() == [length - 2 for length in lengths]


def test_a_try_computes_as_many_positions_and_leaves_weights_and_gradients_alone(make):
    model = make.tiny_policy().model
    before = [parameter.clone() for parameter in model.parameters()]
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, out: seen.append(out.shape[-2]))
    forward = PolicyForward(model, temperature=1.0)
    assert update_fits(forward, 100, longest=20, reserved_bytes=1000)
    assert seen == [95]  # without the last token of each of five rows
    assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_try_is_a_pass_behind_others_whose_gradient_is_there(make):
    model = make.tiny_policy().model
    next(model.parameters()).requires_grad_(False)
    held = []

    def look(*_):
        held.append([parameter.grad is not None for parameter in model.parameters()])

    model.get_input_embeddings().register_forward_hook(look)
    assert update_fits(PolicyForward(model, temperature=1.0), 100, longest=20, reserved_bytes=0)
    assert held == [[parameter.requires_grad for parameter in model.parameters()]]


def test_what_is_reserved_has_to_fit_too_and_other_errors_are_no_lack_of_memory(make):
    model = make.tiny_policy().model
    forward = PolicyForward(model, temperature=1.0)
    assert not update_fits(forward, 100, longest=20, reserved_bytes=1 << 50)
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output[:, :0])
    with pytest.raises(RuntimeError, match=r"."):
        update_fits(forward, 100, longest=20, reserved_bytes=0)
