"""What the planner chooses: the split of one GPU for `rollout=auto`, and micro-batches of several ranks."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from atrium.assemble import beginning, sweeping
from atrium.assemble.beginning import Origin, begin
from atrium.assemble.choosing import fastest_split
from atrium.assemble.memory import PROMPT_TOKENS, USABLE_FRAC, known_shape, planned_memory, settled
from atrium.assemble.ranks import fixed_for_ranks
from atrium.cli import main
from atrium.config.compose import compose, to_json
from atrium.config.machine import Machine
from atrium.config.resume import resumed
from atrium.planning.duration import planned_run
from atrium.planning.memory import peak_by_phase
from atrium.sweep.runner import TrialRun

GB = 10**9
SIZES = {"RTX 4090": 24, "L40S": 48, "H100": 80, "H200": 141}
ONE_GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1)


def composed(*overrides):
    return compose(overrides, machine=ONE_GPU)


def on(config, gpu):
    """The configuration as it is settled on a GPU, its largest phase and its predicted step, in seconds."""
    num_bytes, shape = SIZES[gpu] * GB, known_shape(config)
    run = settled(config, shape, PROMPT_TOKENS, num_bytes)
    peak = max(peak_by_phase(planned_memory(run, shape, device_bytes=num_bytes)).values())
    return run, peak, planned_run(run, shape, gpu, PROMPT_TOKENS, num_bytes).step_s


@pytest.mark.parametrize("gpu", SIZES)
@pytest.mark.parametrize("model", ["qwen3_0_6b", "qwen3_1_7b"])
def test_the_chosen_split_fits_and_is_at_most_as_slow_as_the_shipped_one(model, gpu):
    config = composed(f"model={model}")
    chosen = fastest_split(config, known_shape(config), gpu, SIZES[gpu] * GB)
    if chosen is config:  # nothing fits, or nothing is faster
        return
    _, peak, seconds = on(chosen, gpu)
    assert peak <= USABLE_FRAC * SIZES[gpu] * GB
    sizes = config.rollout.model_dump(exclude={"gpu_memory_fraction", "sleep_level"})
    assert chosen.rollout.model_dump(exclude={"gpu_memory_fraction", "sleep_level"}) == sizes
    assert chosen.compute == config.compute
    if model == "qwen3_1_7b" and gpu == "H100":
        assert chosen.rollout.sleep_level == 1
        assert seconds < on(config, gpu)[2]


def test_a_gpu_on_which_the_shipped_split_does_not_fit_gets_one_that_does():
    config = composed("model=qwen3_1_7b")
    chosen = fastest_split(config, known_shape(config), "L40S", 48 * GB)
    assert on(config, "L40S")[1] > USABLE_FRAC * 48 * GB > on(chosen, "L40S")[1]


def test_a_card_of_unknown_speed_is_split_like_a_known_one():
    config = composed("model=qwen3_1_7b")
    shape = known_shape(config)
    assert fastest_split(config, shape, "A Card", 80 * GB) == fastest_split(config, shape, "H100", 80 * GB)


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout=transformers",),
        ("compute.num_processes=2",),
        ("rollout=vllm", "rollout.placement=server"),
        ("rollout=vllm", "rollout.kv_cache_mb=9000"),
    ],
)
def test_other_engines_processes_servers_and_caches_of_a_given_size_stay_as_they_are(overrides):
    config = composed("model=qwen3_1_7b", *overrides)
    assert fastest_split(config, known_shape(config), "H100", 80 * GB) is config


@pytest.fixture
def on_an_h100(monkeypatch):
    """A machine with one H100 where a run begins; what would be trained is collected."""
    begun = []
    gpus = [{"name": "NVIDIA H100 80GB HBM3", "memory": f"{80 * GB >> 20} MiB", "driver": "1"}]
    monkeypatch.setattr("atrium.runs.provenance.gpus", lambda: gpus)
    monkeypatch.setattr(beginning, "check_run", lambda config, step: 0)
    monkeypatch.setattr(beginning, "compose", lambda lines: composed(*lines))
    monkeypatch.setattr(beginning, "train_here", lambda config, lines: begun.append(config))
    return begun


def test_a_run_with_an_open_engine_begins_with_the_chosen_split_and_a_table_of_it(on_an_h100, capsys):
    begin(Origin(), ["model=qwen3_1_7b"])
    begin(Origin(), ["model=qwen3_1_7b", "rollout=vllm"])
    said = capsys.readouterr().out
    assert [run.rollout.sleep_level for run in on_an_h100] == [1, None]
    assert on_an_h100[0].rollout.gpu_memory_fraction > 0.4 == on_an_h100[1].rollout.gpu_memory_fraction
    assert len(re.findall(r"^engine's cache ", said, flags=re.MULTILINE)) == 2
    assert said.count("it fits in 80.0 GB of GPU memory\npredicted, not measured: ") == 2


@pytest.mark.parametrize("overrides", [["model=qwen3_1_7b"], ["model=qwen3_1_7b", "rollout=vllm"]])
def test_memory_predicts_the_split_that_a_run_begins_with(overrides, on_an_h100, capsys):
    begin(Origin(), overrides)
    at_start = capsys.readouterr().out
    assert main(["memory", *overrides, "--gpu", "H100"]) == 0
    predicted = capsys.readouterr().out.partition("; computed from")[0]
    share = f"vLLM uses {on_an_h100[0].rollout.gpu_memory_fraction:.0%} of the GPU"
    assert share in predicted
    assert predicted in at_start


def test_a_run_that_goes_on_keeps_the_split_that_was_chosen(on_an_h100, tmp_path, monkeypatch):
    begin(Origin(), ["model=qwen3_1_7b"])
    monkeypatch.setattr("atrium.config.resume.compose", lambda lines: composed(*lines))
    (stored,) = on_an_h100
    folder = tmp_path / "a" / "b"
    again = resumed(stored, folder, ["model=qwen3_1_7b", "rollout=auto", "num_steps=300"])
    assert again.rollout == stored.rollout
    assert "gpu_memory_fraction" in to_json(again)


class EnoughError(Exception):
    """Ends a run before anything is built."""


def test_a_run_of_a_sweep_gets_the_chosen_split_too(on_an_h100, monkeypatch):
    found = []

    def begun(run):
        found.append(run.config)
        raise EnoughError

    monkeypatch.setattr(sweeping, "_begun", begun)
    lines = ("model=qwen3_1_7b",)
    run = TrialRun(config=composed(*lines), overrides=lines, label={}, run=None, on_begun=print)
    with pytest.raises(EnoughError):
        sweeping.execute(run, None)
    assert found[0].rollout.sleep_level == 1


class SeveralRanks(SimpleNamespace):
    """Ranks of which this process is the first."""

    is_alone, is_first = False, True

    def from_first(self, value):
        return value


def test_several_ranks_take_micro_batches_that_are_planned_to_fit(monkeypatch):
    gpus = [{"name": "a GPU", "memory": f"{80 * GB >> 20} MiB", "driver": "1"}] * 8
    monkeypatch.setattr("atrium.runs.provenance.gpus", lambda: gpus)
    config = composed("model=qwen3_8b", "compute.num_processes=8")
    assert config.compute.micro_batch_tokens == "auto"
    found = fixed_for_ranks(config, SeveralRanks(size=8))
    shape, tokens = known_shape(found), found.compute.micro_batch_tokens
    assert PROMPT_TOKENS + found.rollout.max_new_tokens <= tokens < 16384
    planned = settled(found, shape, PROMPT_TOKENS, 80 * GB)
    peaks = peak_by_phase(planned_memory(planned, shape, device_bytes=80 * GB))
    assert max(peaks.values()) <= USABLE_FRAC * 80 * GB
    monkeypatch.setattr("atrium.runs.provenance.gpus", list)
    assert fixed_for_ranks(config, SeveralRanks(size=8)).compute.micro_batch_tokens == 16384
    assert fixed_for_ranks(found, SeveralRanks(size=8)) is found
