from __future__ import annotations

import subprocess
import sys

import pytest

COUNT_NEW_PAGES = """
import resource, sys
import torch
from atrium.train.guard.memory import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(77)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use_and_free():
    for _ in range(16):
        torch.ones(2**24)
use_and_free()
before = faults()
use_and_free()
print(faults() - before)
"""


def new_pages(mode):
    process = subprocess.run(
        [sys.executable, "-c", COUNT_NEW_PAGES, mode], capture_output=True, text=True, check=False
    )
    if process.returncode == 77:
        pytest.skip("this C library cannot be told to keep memory")
    assert process.returncode == 0, process.stderr
    return int(process.stdout)


@pytest.mark.full
def test_freed_memory_of_large_tensors_is_used_again_without_new_pages():
    assert new_pages("keep") < new_pages("default") / 8
