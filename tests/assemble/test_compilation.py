"""Compiled or plain blocks where `compute.compile` is auto: decided once, recorded, and explained."""

from __future__ import annotations

import json

import pytest
from tests.models.zoo import zoo_policy
from tests.opened_run import opened_run

from atrium.assemble.compilation import settle_compilation
from atrium.assemble.fitting import changed
from atrium.config.compose import compose, from_json
from atrium.config.machine import machine_with_gpu
from atrium.config.resume import resumed
from atrium.runs.run_folder import RunFolder


@pytest.fixture
def settle(tmp_path, monkeypatch):
    """Settle the choice of a run on a GPU: its configuration, its folder, and its messages."""
    monkeypatch.setattr("atrium.assemble.compilation.missing_compilers", lambda kind: [])

    def settled(*overrides, packing=True, model="llama"):
        folder, said = RunFolder(tmp_path / "runs" / "experiment" / "run"), []
        folder.path.mkdir(parents=True, exist_ok=True)
        config = compose(["model=smollm2_135m", "compute=cuda", *overrides], machine=machine_with_gpu())
        config = changed(config, compute={"packing": packing})
        run = settle_compilation(opened_run(config, folder, said), zoo_policy(model).model)
        return run.config, folder, said

    return settled


def test_packed_updates_on_a_gpu_are_compiled_and_a_resumed_run_keeps_that(settle):
    config, folder, [line] = settle()
    assert config.compute.compile is True
    assert line.startswith("updates compile the decoder blocks (compute.compile=auto)")
    stored = from_json(folder.config_file.read_text())
    assert resumed(stored, folder.path, []).compute.compile is True


@pytest.mark.parametrize(
    ("overrides", "packing", "reason"),
    [
        ((), False, "padded rows"),
        (("rollout=vllm", "rollout.enforce_eager=true"), True, "rollout.enforce_eager=true"),
    ],
)
def test_an_obstacle_turns_compilation_off_and_is_named(settle, overrides, packing, reason):
    config, folder, [line] = settle(*overrides, packing=packing)
    assert config.compute.compile is False
    assert json.loads(folder.config_file.read_text())["compute"]["compile"] is False
    assert reason in line


def test_a_missing_compiler_turns_compilation_off(settle, monkeypatch):
    monkeypatch.setattr("atrium.assemble.compilation.missing_compilers", lambda kind: ["a C compiler (gcc)"])
    config, _, [line] = settle()
    assert config.compute.compile is False
    assert line.endswith("compilation requires a C compiler (gcc)")


@pytest.mark.parametrize("typed", ["true", "false"])
def test_a_typed_choice_is_kept_in_silence(settle, typed):
    config, folder, said = settle(f"compute.compile={typed}")
    assert (config.compute.compile, said) == (typed == "true", [])
    assert not folder.config_file.exists()
