"""Wrong settings and command lines: each is one line on standard error and exit code 2, before any model.

The table holds the arguments of `atrium`, what the line has to name as wrong, and something that it has to
offer instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest

from atrium.assemble import beginning
from atrium.cli import main

DiskUsage = namedtuple("DiskUsage", "total used free")

SERVED = ("rollout=vllm", "rollout.placement=server")
OVERRIDES = [
    # What is not there, and what was meant.
    (["algorithm=atrr"], "algorithm=atrr", "did you mean atr?"),
    (["divergence=kl33"], "divergence=kl33", "did you mean kl3?"),
    (["model=tinny"], "model=tinny", "did you mean tiny?"),
    (["experiment=stres"], "experiment=stres", "did you mean stress?"),
    (["debug=tiny"], "debug=tiny", "tiny_steps"),
    (["reward=accuracy"], "reward=accuracy", "correctness"),
    (["compute=gpu"], "compute=gpu", "cuda"),
    (["algoritm=atr"], "algoritm", "did you mean algorithm?"),
    (["num_step=10"], "num_step=10", "did you mean num_steps?"),
    (["delta=0.1"], "delta=0.1", "did you mean divergence.delta?"),
    (["learning_rate=1e-4"], "learning_rate", "did you mean optimizer.learning_rate?"),
    (["optimizer.learning_rte=1e-4"], "optimizer.learning_rte", "did you mean optimizer.learning_rate?"),
    (["+optimizer.lr=1e-4"], "optimizer.lr", "learning_rate"),
    (["divergence.delt=0.1"], "divergence.delt", "did you mean divergence.delta?"),
    (["divergence=none", "divergence.delta=0.1"], "divergence.delta", "kind none"),
    # The wrong type.
    (["num_steps=many"], "num_steps must be", "a whole number"),
    (["num_steps="], "num_steps must be", "a whole number"),
    (["seed=true"], "seed must be", "a whole number"),
    (["optimizer.learning_rate=fast"], "optimizer.learning_rate must be", "a number"),
    (["optimizer.learning_rate=???"], "optimizer.learning_rate=???", "a missing value"),
    (["optimizer.learning_rate=nan"], "optimizer.learning_rate must be", "a finite number"),
    (["checkpoint.keep_best=maybe"], "checkpoint.keep_best must be", "true or false"),
    # Out of range.
    (["divergence.delta=-1"], "divergence.delta must be", "at least 1e-12"),
    (["seed=-1"], "seed must be", "at least 0"),
    (["divergence.kind=kl4"], "divergence.kind must be", "did you mean kl3?"),
    (["experiment_name=a/b"], "experiment_name must be", "letters, digits"),
    (["experiment_name=sweeps"], "experiment_name=sweeps", "any name except sweeps"),
    # Waits that would not fit into 31 bits of milliseconds.
    (["divergence.delta=1e-100"], "divergence.delta must be", "at least 1e-12"),
    (["evaluation.temperature=1e-20"], "evaluation.temperature must be", "0 (greedy decoding)"),
    (
        ["regularizer=entropy", "regularizer.entropy.coefficient=1e-40"],
        "coefficient must be",
        "at least 1e-30 in absolute value",
    ),
    (["optimizer.learning_rate=1e39"], "optimizer.learning_rate must be", "at most 1e+20"),
    (["compute.num_threads=100000"], "compute.num_threads must be", "at most 1024"),
    (["algorithm=bapo", "divergence.upper_max=1e5"], "divergence.upper_max must be", "at most 10"),
    (["grader.timeout_s=3e6"], "grader.timeout_s must be", "at most 259200"),
    (["compute.timeout_s=3e6"], "compute.timeout_s must be", "at most 259200"),
    (
        ["rollout=vllm_cpu", "rollout.step_timeout_s=3e6"],
        "rollout.step_timeout_s",
        "at most 259200",
    ),
    (["compute=slurm", "compute.slurm.signal_lead_s=65536"], "compute.slurm.signal_lead_s", "at most 65535"),
    (["runs_dir="], "runs_dir must be", "non-empty text"),
    # Missing.
    (["model=hub"], "model.source is missing", "Qwen/Qwen3-0.6B"),
    (["~optimizer.learning_rate"], "optimizer.learning_rate is missing", "learning rate"),
    (["~nope"], "~nope", "nope=null"),
    # Impossible or idle together.
    (
        ["optimizer.num_minibatches=3"],
        "optimizer.num_minibatches must divide",
        "got 3; use one of 1, 2, 4, 8, 16, 32, 64",
    ),
    (["rollout.group_size=1"], "rollout.group_size=1", "batch_mean"),
    (["rollout.max_new_tokens=200"], "rollout.max_new_tokens must be at most 112", "got 200"),
    (["model.prompt=qwen_box"], "model.prompt: unknown prompt template qwen_box", "qwen_boxed"),
    (["algorithm=reinforce", "divergence=kl3"], "divergence", "none"),
    (["model=hub", "model.source=./nowhere"], "model.source=./nowhere", "Hub id"),
    # Not the grammar of an override.
    (["algorithm"], "algorithm: the value is missing", "algorithm="),
    (["atr"], "atr: the value is missing", "key=value"),
    (["=3"], "=3: the key is missing", "seed=1"),
    (["seed=((("], "seed=(((", "key=value"),
    (["seed=1,"], "seed=1,", "key=value"),
    (["seed=0,1"], "seed=0,1", "--multirun"),
    (["algorithm="], 'algorithm=""', "atr"),
    (["algorithm=null"], "algorithm=null", "atr"),
    (["algorithm=[atr,grpo]"], 'algorithm=["atr", "grpo"]', "atr"),
    (["+algorithm=atr"], "+algorithm=atr", "algorithm=OPTION"),
    (["~algorithm"], "~algorithm", "algorithm=OPTION"),
    (["algorithm@divergence=atr"], "algorithm@divergence=atr", "algorithm=OPTION"),
    (["+seed=1"], "+seed=1", "seed=VALUE"),
    # Code, secrets, and Hydra's own settings.
    (["+model._target_=os.system"], "_target_", "kind"),
    (["model={_target_:os.system}"], "_target_", "kind"),
    (["hydra.callbacks.x._target_=os.system"], "_target_", "kind"),
    (["+hydra.callbacks.x.y=1"], "hydra.callbacks", "--multirun"),
    (["hydra/callbacks=x"], "hydra/callbacks", "--multirun"),
    (["hydra.searchpath=[file:///tmp]"], "hydra.searchpath", "--multirun"),
    (["hydra.run.dir=/tmp"], "hydra.run.dir", "--multirun"),
    (["experiment_name=${oc.env:HOME}"], "oc.env", "a plain value"),
    (["experiment_name=${ oc.env:HOME}"], "oc.env", "a plain value"),
    (["seed=${oc.decode:${oc.env:SEED}}"], "oc.decode", "a plain value"),
    (["experiment_name=${${runs_dir}:HOME}", "runs_dir=oc.env"], "experiment_name", "a plain value"),
    (["seed=${nowhere.x}"], "seed", "nowhere.x"),
    # Flags.
    (["--multirn"], "--multirn", "did you mean --multirun?"),
    (["--cfg", "jobs"], "--cfg", "'job'"),
    (["--cfg", "job", "--multirun"], "--multirun", "--cfg"),
    (["--resolve"], "--resolve", "--cfg job"),
    (["--shell-completion"], "--shell-completion", "install=bash"),
    (["--shell-completion", "query=bash"], "query=bash", "COMP_LINE"),
    (["--shell-completion", "query=foo"], "query=foo", "install=zsh"),
    (["--info"], "--info", "atrium config"),
    (["--config-dir", "/tmp"], "--config-dir", "your own files"),
    (["--config-path", "/tmp"], "--config-path", "your own files"),
    (["--config-name", "other"], "--config-name", "your own files"),
    (["--experimental-rerun", "x.pickle"], "--experimental-rerun", "your own files"),
    (["--multirun", "seed=interval(0,1)"], "seed=interval(0,1)", "range"),
    (["--multirun", "algorithm=atr,grppo"], "algorithm=grppo", "did you mean grpo?"),
    (["--multirun", "optimizer.num_minibatches=2,3"], "optimizer.num_minibatches must divide", "1, 2, 4"),
    (["--cfg", "job", "divergence.delta=-1"], "divergence.delta must be", "at least 1e-12"),
    # Adapters, and sampling beside the update.
    (["model.lora={rank: 4}"], "model.lora.alpha is missing", "alpha / rank"),
    (["model.lora={rank: 0, alpha: 8}"], "model.lora.rank must be", "at least 1"),
    (["model.lora={rank: 4, alpha: 8, dropout: 0.1}"], "model.lora.dropout", "rank"),
    (["model.lora={rank: 4, alpha: 8, target_modules: q_proj}"], "model.lora.target_modules", "all_linear"),
    (["rollout=vllm", "rollout.adapters=separate"], "rollout.adapters=separate", "no adapters"),
    (["optimizer=adamw_8bit", "compute.num_processes=2"], "optimizer.kind=adamw_8bit", "optimizer=adamw,"),
    (["compute.num_processes=4", "compute.num_shards=3"], "compute.num_shards must divide", "one of 1, 2, 4"),
    (["compute.on_oom=shrink", "compute.num_processes=2"], "compute.on_oom=shrink", "stop"),
    (["rollout.devicesx=null"], "rollout.devicesx=null", "did you mean rollout.devices?"),
    (["rollout.devices=" + "[" * 3_000 + "]" * 3_000], "rollout.devices=", "at most 32 levels deep"),
    (["rollout.devices=" + "[" * 150 + "]" * 150], "rollout.devices=", "at most 32 levels deep"),
    (["rollout.overlap=true"], "rollout.overlap=true", "rollout.placement=server"),
    (["rollout.placement=severs"], "rollout.placement must be", "did you mean server?"),
    (["rollout.placement=beside"], "rollout.placement=beside", "choose rollout.placement=server with"),
    (["rollout.placement=cluster"], "rollout.placement=cluster", "or rollout.placement=inside"),
    (["rollout.num_engines=2"], "rollout.num_engines=2", "rollout.num_servers"),
    (["rollout.engine_timeout_s=9"], "rollout.engine_timeout_s=9", "rollout.step_timeout_s"),
    (["rollout.cluster_address=a:1"], "rollout.cluster_address=a:1", "rollout.servers"),
    (["rollout.placement=server"], "rollout.placement=server", "rollout=vllm"),
    (["rollout.num_servers=2"], "rollout.num_servers=2", "rollout.placement=server"),
    (["rollout=vllm", "rollout.servers=[host]"], "rollout.servers", "http"),
    (
        ["rollout=vllm", "rollout.placement=server", "rollout.temperature=2.5"],
        "rollout.temperature",
        "at most 2",
    ),
    (
        ["rollout=vllm", "rollout.placement=server", "evaluation.temperature=3"],
        "evaluation.temperature",
        "at most 2",
    ),
    (["rollout.devices=[0]"], "rollout.devices=[0]", "choose rollout.placement=server"),
    (["rollout=vllm", "rollout.weight_transfer=nccl"], "rollout.weight_transfer=nccl", "placement=server"),
    ([*SERVED, "rollout.devices=[0,1]"], "rollout.devices must have length 1", "got [0, 1]"),
    (
        ["model=qwen3_4b", "model.architecture.head_dim=1e-100"],
        "head_dim must be a whole number",
        "got 1e-100",
    ),
    (
        ["model=qwen3_4b", "model.architecture.rms_norm_eps=1e-100"],
        "rms_norm_eps must be 0, or",
        "got 1e-100",
    ),
    ([*SERVED, "compute.num_processes=2"], "rollout.num_servers must be a multiple", "got 1"),
    ([*SERVED, "rollout.temperature=3"], "rollout.temperature must be at most 2", "got 3"),
    ([*SERVED, "rollout.temperature=0.005"], "rollout.temperature", "0.01"),
    ([*SERVED, "evaluation.temperature=3"], "evaluation.temperature must be at most 2", "got 3"),
    ([*SERVED, "evaluation.temperature=0.005"], "evaluation.temperature", "0.01"),
    ([*SERVED, "model.prompt.stop=[x]"], "model.prompt.stop", "rollout.placement=inside"),
    (["rollout.continuous=true"], "rollout.continuous=true", "choose rollout.placement=server"),
    ([*SERVED, "rollout.continuous=true"], "rollout.continuous=true", "rollout.lag=1 or more"),
    (
        [*SERVED, "rollout.continuous=true", "rollout.lag=1", "compute.behavior_logprobs=recompute"],
        "compute.behavior_logprobs=recompute",
        "choose compute.behavior_logprobs=auto",
    ),
    (
        [*SERVED, "rollout.servers=[http://a:1,http://A:1]"],
        "must not name a server twice",
        "remove the duplicate",
    ),
    ([*SERVED, "rollout.lag=1", "rollout.sleep_level=1"], "rollout.sleep_level=1", "null"),
    (
        ["rollout=vllm", "rollout.enforce_eager=true", "compute.compile=true"],
        "rollout.enforce_eager=true",
        "compute.compile=false",
    ),
    (["compute.flash_attention=3"], "compute.flash_attention=3 requires", "compute.flash_attention=2"),
    (["compute.gradient_exchange=minibatch"], "gradient_exchange=minibatch has no effect", "micro_batch"),
    (["compute.head_dtype=float32"], "compute.head_dtype=float32", "model"),
    (["compute.residual_dtype=model"], "compute.residual_dtype=model has no effect", "float32"),
    (
        ["rollout=vllm", "rollout.max_num_batched_tokens=256"],
        "rollout.max_num_batched_tokens must be",
        "=512",
    ),
    (
        ["rollout=vllm_cpu", "model.head_dim=32", "rollout.num_speculative_tokens=3", "evaluation.top_p=0.9"],
        "rollout.num_speculative_tokens=3",
        "evaluation.top_p=1",
    ),
    # A run to continue.
    (["--resume"], "--resume", "atrium runs"),
    (["--resume", "--multirun"], "--resume", "atrium runs"),
    (["resume="], "resume=", "atrium runs"),
    (["--resume", "nowhere"], "resume=nowhere", "there are no runs in"),
    (["resume=nowhere"], "resume=nowhere", "there are no runs in"),
    (["resume=nowhere", "--multirun"], "resume=nowhere", "atrium show"),
    (["--from-config", "nowhere.json"], "nowhere.json", "atrium runs"),
    (["++resume=nowhere"], "resume=nowhere", "there are no runs in"),
]

COMMANDS = [
    (["trian"], "trian", "did you mean train?"),
    (["frobnicate"], "frobnicate", "train"),
    (["algorithm=atr"], "algorithm=atr", "train"),
    (["config", "seed=-1"], "seed must be", "at least 0"),
    (["objectives", "gsp"], "gsp", "did you mean gspo?"),
    (["objectives", "--different"], "--different", "requires at least two methods"),
    (["objectives", "--out", "x.md"], "--out", "requires --markdown"),
    (["objectives", "--bogus"], "--bogus", "unknown flag"),
    (["theory", "art"], "art", "did you mean atr?"),
    (["theory", "atr", "--only", "everything"], "everything", "invalid choice"),
    (["theory", "atr", "--seeds", "1"], "--seeds", "at least 2, got 1"),
    (["theory", "atr", "--seeds", "x"], "--seeds", "at least 2, got x"),
    (["windows", "--budget", "0"], "must be a number greater than 0", "got 0"),
    (["windows", "--budget", "nan"], "must be a number greater than 0", "got nan"),
    (["windows", "--budget", "inf"], "must be a number greater than 0", "got inf"),
    (["windows", "kl3="], "must be a number greater than 0", "got nothing"),
    (["windows", "kl3=200"], "kl3", "at most 100"),
    (["windows", "window=0.2"], "window has no budget", "window"),
    (["windows", "kl33"], "kl33", "did you mean kl3?"),
    (["windows", "--clip", "1", "0.2"], "--clip", "LOW must be between 0 and 1"),
    (["windows", "--clip", "0.2", "x"], "'x'", "invalid float value"),
    (["windows", "--clip", "0.2"], "--clip", "expected 2 arguments"),
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Runs would be written here; one that is begun after all is a failure."""
    monkeypatch.chdir(tmp_path)

    def begin(config, overrides):
        raise AssertionError(f"accepted: {config}")

    monkeypatch.setattr(beginning, "train_here", begin)


def _refused(argv, named, offered, capsys):
    code = main(argv)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert named in captured.err
    assert offered in captured.err


@pytest.mark.parametrize(("argv", "named", "offered"), OVERRIDES, ids=[" ".join(o[0]) for o in OVERRIDES])
def test_a_wrong_setting_is_one_line_that_names_it_and_what_is_allowed(argv, named, offered, capsys):
    _refused(["train", *argv], named, offered, capsys)


@pytest.mark.parametrize(("argv", "named", "offered"), COMMANDS, ids=[" ".join(c[0]) for c in COMMANDS])
def test_a_wrong_command_is_one_line_that_says_what_is_allowed(argv, named, offered, capsys):
    _refused(argv, named, offered, capsys)


def test_runs_dir_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    _refused(["train", "runs_dir=taken"], "runs_dir=taken", "runs_dir=PATH", capsys)


def test_runs_dir_below_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    _refused(["train", "runs_dir=taken/runs"], "runs_dir=taken/runs", "runs_dir=PATH", capsys)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")  # noqa: PTH112
def test_runs_dir_that_cannot_be_created_is_refused(capsys):
    _refused(["train", "runs_dir=/proc/atrium"], "runs_dir=/proc/atrium", "runs_dir=PATH", capsys)


def test_a_full_disk_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(2**30, 2**30 - 5 * 2**20, 5 * 2**20))
    _refused(["train"], "5 MB are free", "runs_dir=PATH", capsys)


def _with_free_gb(num_gb, monkeypatch):
    free = int(num_gb * 1e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(2 * free, free, free))


def test_a_disk_without_room_for_the_checkpoints_of_a_model_is_refused(monkeypatch, capsys, tmp_path):
    # 12 bytes for each of 1.72e9 parameters: 20.6 GB. Two are kept, the best one, and one is written.
    kept = ["checkpoint.keep_last=2", "checkpoint.keep_best=true"]
    argv = ["train", "model=qwen3_1_7b", "model.weights=random", *kept, f"runs_dir={tmp_path}"]
    monkeypatch.setattr("atrium.assemble.checks.check_memory", lambda *arguments: None)
    _with_free_gb(60, monkeypatch)
    _refused(
        argv,
        "the run needs 82.6 GB for checkpoints (4 checkpoints of 20.6 GB",
        "runs_dir=PATH",
        capsys,
    )
    # Adapters alone have a state, beside the merged weights.
    _with_free_gb(20, monkeypatch)
    lora = [*argv, "model.lora={rank: 16, alpha: 32, target_modules: all_linear}"]
    _refused(lora, "4 checkpoints of 7.1 GB each", "checkpoint.keep_last=1", capsys)


def test_every_job_of_a_sweep_is_checked_before_the_first_begins(capsys):
    argv = ["train", "--multirun", "seed=0,1", "rollout.num_prompts=64,32", "optimizer.num_minibatches=4,64"]
    _refused(argv, "optimizer.num_minibatches must divide", "rollout.num_prompts=32", capsys)


SUBPROCESSES = [
    (["trian"], "did you mean train?"),
    (["train", "algorithm=atrr"], "did you mean atr?"),
    (["train", "divergence.delta=-1"], "at least 1e-12"),
    (["train", "--resume", "nowhere"], "resume=nowhere"),
]


@pytest.mark.parametrize(("argv", "said"), SUBPROCESSES, ids=[" ".join(s[0]) for s in SUBPROCESSES])
def test_the_installed_command_refuses_without_a_traceback_and_loads_no_torch(argv, said, tmp_path):
    program = (
        f"import sys; from atrium.cli import main; code = main({argv!r}); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; assert 'torch' not in sys.modules; sys.exit(code)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
