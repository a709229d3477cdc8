"""The interface against what other trainers' own losses made of the same tensors: recorded by record_*.py."""

from __future__ import annotations

import pytest
import torch
from tests.peers import test_verl as verl
from tests.peers import tiny_trl as trl
from tests.peers.recorded_vectors import read

import atrium
from atrium.method.reductions import Totals


def check(trainer, name, method, totals, scale=1.0):
    recorded = read(trainer)
    tensors = {key: torch.tensor(values) for key, values in recorded["tensors"].items()}
    logprob_BT = tensors.pop("logprob_BT").requires_grad_()
    rollout_BT = tensors["old_logprob_BT"]
    (scale * method.loss(logprob_BT, totals=totals, rollout_logprob_BT=rollout_BT, **tensors).loss).backward()
    expected_BT = torch.tensor(recorded["gradients"][name])
    assert expected_BT.abs().max() > 0
    torch.testing.assert_close(logprob_BT.grad, expected_BT, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", trl.OWN)
def test_gradients_are_those_of_trls_own_losses(name):
    _, settings = trl.OWN[name]
    method = atrium.load_method(name, *settings, max_new_tokens=8)
    mask_BT = torch.tensor(read("trl")["tensors"]["mask_BT"])
    check("trl", name, method, Totals(tokens=mask_BT.sum(), rows=len(mask_BT), groups=1))


@pytest.mark.parametrize("name", verl.OWN)
def test_gradients_are_those_of_verls_own_losses(name):
    tokens, rows = verl.GLOBAL["batch_num_tokens"], verl.GLOBAL["global_batch_size"]
    method = atrium.load_method(name, max_new_tokens=verl.T)
    totals = Totals(tokens=tokens, rows=rows, groups=1)
    check("verl", name, method, totals, scale=verl.GLOBAL["dp_size"])
