"""When a run computes activations again: by what memory is predicted and found, once, and kept on resume."""

from __future__ import annotations

import pytest
from tests.opened_run import opened_run

from atrium.assemble import budget
from atrium.assemble.budget import tune_micro_batches
from atrium.assemble.memory import known_shape
from atrium.assemble.memory import needs_recomputation as needed
from atrium.assemble.policies import build_policy, build_updater
from atrium.base.errors import ConfigError, MemoryExhaustedError
from atrium.config.compose import compose, from_json
from atrium.config.machine import Machine, resolve_auto
from atrium.config.resume import resumed
from atrium.runs.listener import Listener
from atrium.runs.run_folder import RunFolder
from atrium.train.guard.faults import FaultHandling

AUTO = "compute.recompute_activations=auto"
GB = 10**9


def needs_recomputation(config, **sizes):
    return needed(config, known_shape(config), **sizes)


def _auto(*overrides, **compute):
    """A configuration as a machine with a GPU composes it, without one being there."""
    config = compose(["model=qwen3_8b", "model.weights=random", "rollout=transformers", *overrides])
    changes = {"dtype": "bfloat16", "recompute_activations": "auto", "micro_batch_tokens": 4096, **compute}
    return config.model_copy(
        update={"compute": config.compute.model_copy(update={"device": "cuda", **changes})}
    )


@pytest.mark.parametrize(
    ("compute", "kind", "expected"),
    [
        ({"device": "cpu"}, "tiny", False),
        ({"device": "cpu"}, "hub", False),
        ({"device": "cpu", "memory_limit_mb": 500}, "tiny", "auto"),
        ({"device": "cuda"}, "tiny", False),
        ({"device": "cuda"}, "hub", "auto"),
        ({"device": "cuda", "num_processes": 8}, "hub", "auto"),
    ],
)
def test_auto_is_a_rule_unless_memory_decides(compute, kind, expected):
    machine = Machine(num_cores=2, requested_threads=1, has_cuda=True)
    data = {"model": {"kind": kind}, "compute": {**compute, "recompute_activations": "auto"}}
    assert resolve_auto(data, machine)["compute"]["recompute_activations"] == expected


def test_what_is_set_is_not_asked():
    config = _auto()
    for value in (True, False):
        compute = config.compute.model_copy(update={"recompute_activations": value})
        fixed = config.model_copy(update={"compute": compute})
        for size in (None, GB):
            assert needs_recomputation(fixed, num_prompt_tokens=256, device_bytes=size) is value


def test_another_value_is_refused_in_one_line():
    with pytest.raises(
        ConfigError, match=r"^compute\.recompute_activations must be true, false or auto, got maybe$"
    ):
        compose(["compute.recompute_activations=maybe"])


def test_memory_that_is_not_known_is_taken_to_suffice():
    assert not needs_recomputation(_auto(), num_prompt_tokens=256)


def test_activations_are_kept_where_an_update_with_them_fits():
    rows = ["rollout.max_new_tokens=3840"]
    alone = {"num_prompt_tokens": 256, "device_bytes": 280 * GB}
    assert not needs_recomputation(_auto(*rows), **alone)
    assert needs_recomputation(_auto(*rows), **{**alone, "device_bytes": 150 * GB})
    # More ranks share the weights, and each has activations of its own.
    shared = _auto(*rows, num_processes=8)
    assert needs_recomputation(shared, num_prompt_tokens=256, device_bytes=80 * GB)
    assert not needs_recomputation(shared, num_prompt_tokens=256, device_bytes=141 * GB)


def test_a_micro_batch_that_is_found_or_may_shrink_need_only_hold_the_longest_row():
    rows, size = ["rollout.max_new_tokens=768"], {"num_prompt_tokens": 256, "device_bytes": 220 * GB}
    assert needs_recomputation(_auto(*rows, micro_batch_tokens=16_384), **size)
    assert not needs_recomputation(_auto(*rows, micro_batch_tokens=16_384, on_oom="shrink"), **size)
    assert not needs_recomputation(_auto(*rows, micro_batch_tokens="auto"), **size)
    assert not needs_recomputation(_auto(*rows, micro_batch_tokens=1024), **size)


def test_a_limit_counts_as_memory():
    size = {"num_prompt_tokens": 256, "device_bytes": 280 * GB}
    assert needs_recomputation(_auto("rollout.max_new_tokens=3840", memory_limit_mb=150_000), **size)


def test_a_continued_run_keeps_what_was_chosen(tmp_path):
    stored = compose(["compute.memory_limit_mb=500", "compute.recompute_activations=true"])
    folder = tmp_path / "experiment" / "run"
    for overrides in ([], [AUTO, "compute.memory_limit_mb=500"]):
        assert resumed(stored, folder, overrides).compute.recompute_activations is True
    with pytest.raises(ConfigError, match=r"the run began with compute\.recompute_activations=true"):
        resumed(stored, folder, ["compute.recompute_activations=false"])


@pytest.mark.full
def test_a_run_that_computes_activations_again_equals_one_that_keeps_them(runs, same_record):
    kept = runs.train("num_steps=2", "experiment_name=kept")
    again = runs.train("num_steps=2", "experiment_name=again", "compute.recompute_activations=true")
    same_record(again, kept, step=2)


@pytest.fixture
def settled(runs, tmp_path, monkeypatch):
    """Settles what an updater does about memory, where rows fit in that compute activations again only."""
    tries = []

    def fits(forward, num_tokens, **_):
        tries.append(num_tokens)
        return forward.recomputes and num_tokens <= 300

    monkeypatch.setattr(budget, "update_fits", fits)
    folder = RunFolder.create(tmp_path, "limited", "atr", 0)

    def settle(*overrides):
        config = runs.config("compute.memory_limit_mb=8000", *overrides)
        policy = build_policy(config, runs.runs_dir / ".cache", Listener())
        updater = build_updater(config, policy, None, {}, FaultHandling())
        said = []
        updater = tune_micro_batches(opened_run(config, folder, said), updater, longest=40)
        stored = from_json(folder.config_file.read_text()).compute
        return updater, stored, said, tries

    return settle


def test_where_no_row_is_found_to_fit_activations_are_computed_again(settled):
    updater, stored, said, tries = settled()
    assert updater.forward.recomputes
    assert stored.recompute_activations is True
    assert 40 <= stored.micro_batch_tokens == updater.settings.micro_batch_tokens <= 300
    assert "updates recompute activations: a row of 40 tokens does not fit otherwise" in said
    # Another run of the same shape tries only what did not fit.
    before = len(tries)
    _, again, said, _ = settled()
    assert again == stored
    assert len(tries) == before + 2
    assert any("as found before" in line for line in said)


def test_a_run_that_is_to_keep_activations_is_told_what_would_fit(settled):
    with pytest.raises(MemoryExhaustedError, match=r"set compute\.recompute_activations=true"):
        settled("compute.recompute_activations=false")
