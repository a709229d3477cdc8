"""Every command of the README and the docs, composed for several machines, and its numbers judged.

Commands are read from the pages, so a new one is picked up by itself. What cannot fit a machine has to be
refused in one line that names the memory.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from atrium.assemble.beginning import check_run
from atrium.assemble.sweep_workers import sweep_definition
from atrium.base.errors import ConfigError
from atrium.cli import app
from atrium.cli.train import train_parser
from atrium.config import compose as composition
from atrium.config import multirun
from atrium.config.compose import check_overrides, compose, with_files
from atrium.config.evaluation import compose_evaluation
from atrium.config.files import conf_folder
from atrium.config.machine import Machine
from atrium.config.scale import LARGE_MODEL, known_architecture
from atrium.models.shape import read_shape

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
GB = 10**9
MACHINES = {  # the machine, the memory of its processors and of each GPU
    "no GPU": (Machine(num_cores=4, requested_threads=None, has_cuda=False), 16 * GB, None),
    "24 GB": (_one := Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1),
              128 * GB, 24 * GB),
    "80 GB": (_one, 128 * GB, 80 * GB),
    "8 x 80 GB": (Machine(num_cores=96, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=8),
                  1024 * GB, 80 * GB),
}  # fmt: skip
TOO_LARGE = {
    ("atr model=qwen3_1_7b", "no GPU"), ("atr model=qwen3_1_7b", "24 GB"),
    ("experiment=atr_qwen3_1_7b", "no GPU"), ("experiment=atr_qwen3_1_7b", "24 GB"),
    ("atr model=qwen3_8b", "no GPU"), ("atr model=qwen3_8b", "24 GB"), ("atr model=qwen3_8b", "80 GB"),
}  # fmt: skip
_MODEL = yaml.safe_load((conf_folder() / "model" / "smollm2_135m.yaml").read_text(encoding="utf-8"))
SMOLLM2 = json.dumps(_MODEL["architecture"])
MADE_BY_ANOTHER_COMMAND = {
    "runs/sweeps/delta/report/winner.yaml": "defaults: [stress]\nnum_steps: 20\n",
    "mine.jsonl": "".join(
        json.dumps({"question": f"{number}+1", "answer": str(number + 1)}) + "\n" for number in range(100)
    ),
    "SmolLM2-135M-Instruct/config.json": SMOLLM2,
    "runs/.cache/smollm2_135m/config.json": SMOLLM2,
}
MADE_BY_ANOTHER_COMMAND |= re.findall(  # and what a page has its reader write
    r"^```yaml\n# (\S+\.yaml)\n(.*?)^```",
    (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE | re.DOTALL,
)
# What any sensible training of a language model stays within; whole weights, and adapters or a small model.
RATES = {False: (1e-7, 1e-5), True: (1e-6, 1e-4)}
SHORTEST = {False: 512, True: 1024}
"""New tokens that a worked solution takes at least, and one after a thought."""


def documented_commands():
    """The lines that begin with `$` in the pages' blocks of code, without their comments, each once."""
    found = {}
    for page in PAGES:
        blocks = re.findall(r"^```.*?^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"^\$ (.*)$", "\n".join(blocks).replace("\\\n", " "), flags=re.MULTILINE):
            found[shlex.join(shlex.split(line, comments=True))] = None
    return list(found)


@functools.cache
def atrium_words(command):
    """The arguments of `atrium` that a command comes to, or None where it calls another program."""
    words = shlex.split(command)
    if words[0] == "make":
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
        }
        planned = subprocess.run(
            ["make", "--dry-run", *words[1:]],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        *_, last = planned.stdout.replace("\\\n", " ").strip().splitlines()
        words = shlex.split(last)
    return words[1:] if Path(words[0]).name == "atrium" else None


COMMANDS = [(command, atrium_words(command)) for command in documented_commands()]
ON_RUNS = ("--resume", "--run", "--regrade")
"""Flags that take a run's stored settings instead of composing any."""
TRAINING = [
    command
    for command, words in COMMANDS
    if words and words[0] in ("train", "memory", "config") and not set(ON_RUNS) & set(words)
]
EVALUATING = [
    command
    for command, words in COMMANDS
    if words and words[0] == "evaluate" and not set(ON_RUNS) & set(words)
]
SWEEPING = [
    command
    for command, words in COMMANDS
    if words and words[0] == "sweep" and words[1] not in ("report", "worker")
]


@functools.cache
def _as_files_have_it(*lines):
    return _COMPOSE(lines)


_COMPOSE = composition._compose


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder that has what other commands make, and composition by Hydra once for all machines."""
    for name, text in MADE_BY_ANOTHER_COMMAND.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(composition, "_compose", lambda lines: _as_files_have_it(*lines))


@pytest.fixture
def on(monkeypatch):
    """A function that makes this process see a machine, and returns what settings are resolved for."""

    def see(name):
        machine, memory, gpu_memory = MACHINES[name]
        gpus = [{"name": "a GPU", "memory": f"{gpu_memory >> 20} MiB", "driver": "1"}] if gpu_memory else []
        monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
        monkeypatch.setattr("atrium.engines.settings.check_vllm", lambda device: None)
        monkeypatch.setattr("atrium.runs.provenance.gpus", lambda: gpus * machine.num_gpus)
        monkeypatch.setattr("atrium.runs.provenance.memory_limit_mb", lambda: None)
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**13))
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory, available=memory))
        return machine

    return see


def jobs_of(command):
    """The overrides of every run that a command starts; seeds only repeat what is composed."""
    overrides = with_files(train_parser().parse(atrium_words(command)[1:]).overrides)
    overrides = [line for line in overrides if not re.match(r"seed=.*,", line)]
    return multirun.jobs(check_overrides(overrides, allow_sweeps=True))


def judge(config, typed):
    """Assert that numbers which nobody typed are in the range in which such a model learns."""
    model, rollout, evaluation = config.model, config.rollout, config.evaluation
    if model.kind == "tiny":
        assert 1e-5 <= config.optimizer.learning_rate <= 1e-3
        assert 32 <= rollout.max_new_tokens <= 96
        return
    if model.weights == "random":
        return
    size = read_shape(known_architecture(model))
    is_small, adds_numbers = (
        size is not None and size.num_parameters < LARGE_MODEL,
        config.dataset.kind == "arithmetic",
    )
    slowest, fastest = RATES[model.lora is not None or is_small]
    assert "optimizer.learning_rate" in typed or slowest <= config.optimizer.learning_rate <= fastest
    shortest = 16 if adds_numbers else SHORTEST[model.thinking]
    assert "rollout.max_new_tokens" in typed or shortest <= rollout.max_new_tokens <= 16_384
    assert {"rollout.max_new_tokens", "evaluation.max_new_tokens"} & typed or (
        shortest <= evaluation.max_new_tokens <= 32_768
    )
    assert "rollout.group_size" in typed or 4 <= rollout.group_size <= 64
    assert "rollout.num_prompts" in typed or (8 if is_small else 32) <= rollout.num_prompts <= 1024
    assert "num_steps" in typed or (20 if adds_numbers else 100) <= config.num_steps <= 2000
    context = (model.architecture or {}).get("max_position_embeddings", 2**20)
    assert rollout.max_new_tokens < context


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("command", TRAINING)
def test_a_documented_run_composes_with_sensible_numbers_and_fits_or_is_refused(command, machine, on):
    seen = on(machine)
    is_too_large = any(part in command and name == machine for part, name in TOO_LARGE)
    for lines in jobs_of(command):
        config = compose(lines, machine=seen)
        judge(config, {override.key_or_group for override in check_overrides(lines)})
        if atrium_words(command)[0] != "train":
            continue
        if is_too_large:
            with pytest.raises(ConfigError, match=r"needs at least [\d.]+ GB of .*memory.*but only") as error:
                check_run(config)
            assert error.value.line == str(error.value)
        else:
            check_run(config)


@pytest.mark.parametrize("command", EVALUATING)
def test_a_documented_evaluation_samples_long_enough_answers(command):
    [lines] = [atrium_words(command)[1:]]
    config = compose_evaluation(lines).config
    if config.model.kind != "tiny":
        assert config.evaluation.max_new_tokens >= 2048
        assert 0.5 <= config.evaluation.temperature <= 1.0


def test_documented_servers_are_started_by_what_engine_command_prints(on, monkeypatch, capsys):
    """Of a Hub model, whose shape needs no download here, and of a made one."""
    page = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    section = page.partition("### Servers on other machines")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^atrium (engine-command .*?) > server\.sh", section, flags=re.MULTILINE)
    (run,) = re.findall(r"^atrium train (.*)$", section, flags=re.MULTILINE)
    monkeypatch.setattr(
        "atrium.assemble.servers.exact_shape", lambda config: SimpleNamespace(context_length=40_960)
    )
    assert app.main(shlex.split(command)) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[0] == "ATRIUM_TOKEN=${ATRIUM_TOKEN:?must hold a secret that you choose}"
    assert "VLLM_SERVER_DEV_MODE=1" in words
    values = {flag: words[place + 1] for place, flag in enumerate(words[:-1]) if flag.startswith("--")}
    assert (values["--model"], values["--host"]) == ("Qwen/Qwen3-1.7B", "10.0.0.2")
    assert values["--middleware"] == "atrium.engines.server.guard.Guard"
    config = compose(shlex.split(run), machine=on("80 GB"))
    assert config.rollout.servers == (f"http://{values['--host']}:{values['--port']}",)


def test_engine_command_warns_of_a_port_that_is_in_use_on_this_machine(capsys):
    command = ["engine-command", "rollout=vllm_cpu", "model.head_dim=32", "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, is_warned in (("127.0.0.1", True), ("0.0.0.0", True), ("192.0.2.1", False)):
            assert app.main([*command, port, "--host", host]) == 0
            printed = capsys.readouterr()
            assert f"--host {host} --port {port}" in printed.out
            assert (f"warning: port {port} at {host} is in use" in printed.err) == is_warned
    assert app.main([*command, "70000"]) == 2
    assert "--port: expected 1 to 65535, got 70000" in capsys.readouterr().err


@pytest.mark.parametrize("command", SWEEPING)
def test_the_base_of_a_documented_sweep_composes_with_sensible_numbers(command, monkeypatch):
    _, name, *settings = atrium_words(command)
    if not Path(name).exists():  # one of the project's
        monkeypatch.chdir(REPOSITORY)
    options = dict(setting.split("=", 1) for setting in settings)
    base = sweep_definition(name, options, []).base
    judge(compose(base, machine=MACHINES["80 GB"][0]), set())


def test_commands_of_each_kind_are_found_and_each_refusal_belongs_to_one():
    assert len(TRAINING) >= 10
    assert EVALUATING
    assert SWEEPING
    for part, _ in TOO_LARGE:
        assert any(part in command for command in TRAINING), part
