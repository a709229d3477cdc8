"""The objective's elementwise part is one fused pass where torch compiles it, with the eager numbers.

Atrium runs it uncompiled. Measured on a CPU at 128 rows of 48 tokens, compiling takes a minute and then
saves 1 ms of a micro-batch's 110; on an accelerator it would save launches of kernels that take
microseconds. This test keeps the part compilable: no graph break, no second pass over the tokens.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._inductor.utils import run_and_get_code

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_terms_are_one_kernel_and_equal_the_eager_ones(
    compose_method, make_case, monkeypatch, tmp_path
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    objective, case = compose_method("grpo").objective, make_case(0).to(torch.float32)
    batch = objective.score(case.batch)
    prepared = objective.prepare(batch, None, objective.initial_state())

    def terms(logprob_BT):
        found = objective._terms(logprob_BT, None, batch, prepared)
        details = found.details
        return found.value_BT, details.coefficient_BT, details.gate_BT, details.dropped_BT

    torch.compiler.reset()
    compiled, code = run_and_get_code(torch.compile(terms, fullgraph=True), case.policy.logprob_BT)
    assert len(code) == 1
    assert code[0].count("async_compile.cpp_pybinding(") == 1
    assert "extern_kernels." not in code[0].partition("def call")[2]
    mask_BT = batch.mask_BT
    for one_BT, other_BT in zip(compiled, terms(case.policy.logprob_BT), strict=True):
        # The compiled exponential may round its last bit differently.
        torch.testing.assert_close(one_BT[mask_BT], other_BT[mask_BT], rtol=1e-6, atol=1e-7)
