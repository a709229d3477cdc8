"""`make gpu-report`: all measurements that need a GPU, in at most 28 minutes, at most nine per call.

Measurements run one after the other, the most important first, each in separate processes with a time limit.
Each measurement writes a JSON file with its results or the reason for its failure, and later calls skip it:
repeat the command until it prints `all is done`. On a machine without a package index, put wheels of the
packages that the command lists into a folder. vLLM and TRL are measured if they are installed; mlflow, wandb,
optuna and the dashboard's packages are not needed.

    python benchmarks/gpu_report.py [--wheels FOLDER] [--again NAME ...] [--device cpu]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

REPOSITORY = Path(__file__).resolve().parents[1]
HERE = REPOSITORY / "benchmarks"
sys.path[:0] = [str(REPOSITORY / "platform")]  # if Atrium is not installed

import suite  # noqa: E402
import tables  # noqa: E402

UNUSED = {"mlflow", "wandb", "optuna", "fastapi", "uvicorn"}
"""Packages of the base install that no measurement imports: trackers, sweeps and the dashboard."""
_PEER = "trl_step.py"
_TOO_LONG = "took more than"
LEFT_OUT = {
    "TRL's asynchronous trainer": "it sends weights by NCCL to a vLLM server, which needs a GPU of its own",
    "several GPUs": "one is measured",
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Programs of this folder with their arguments: `programs` on a GPU, `small` for a quick check on a CPU.

    `limit_s` is the time limit of all programs together, in seconds. `needs` is a requirement: `vllm`;
    `server`, a vLLM version whose server is supported; or `pretrained`, vLLM and a pretrained model at
    `PRETRAINED`. None means no requirement.
    """

    programs: tuple[tuple[str, ...], ...]
    small: tuple[tuple[str, ...], ...]
    limit_s: int
    needs: Literal["vllm", "server", "pretrained"] | None = None


PRETRAINED = REPOSITORY / "runs" / ".cache" / "smollm2_135m"
"""The folder in which `make pretrained` writes a chat model; copy it to a machine without a network."""

_UPDATE = ("update_throughput.py", "--dtype", "bfloat16", "--completions", "64", "--repeats", "3")
_SMALL_UPDATE = (
    "update_throughput.py", "--model", "qwen2_5_math_1_5b", "--repeats", "1", "--completions", "8",
    "--group", "4", "--median", "8", "--longest", "16", "--micro-batch-tokens", "512", "--set",
    "model.architecture.num_hidden_layers=2", "model.architecture.hidden_size=96",
    "model.architecture.vocab_size=512", "model.architecture.intermediate_size=64",
)  # fmt: skip
_RUN = (
    "gpu_run.py", "model.weights=random", "debug=tiny_steps", "rollout.max_new_tokens=512",
    "rollout.group_size=32", "checkpoint.keep_best=false",
)  # fmt: skip
# Write a checkpoint after the second of four steps, and profile the last step.
_WITH_PROFILE = ("compute.profile_step=4", "checkpoint.every_num_steps=2", "num_steps=5")
_CHAT = (
    "gpu_run.py", "--stop-after", "2", "model=smollm2_135m", f"model.source={PRETRAINED}", "debug=tiny_steps",
    "compute.dtype=bfloat16", "rollout.max_mismatch=null", "rollout.max_new_tokens=256",
    "dataset.num_validation=2", "dataset.num_test=2", "checkpoint.every_num_steps=1000",
    "checkpoint.keep_best=false",
)  # fmt: skip
_MODELS = ("make_models.py", "{work}")


def _steps(model: str, *arguments: str) -> tuple[tuple[str, ...], ...]:
    """Return the programs that time the same steps in Atrium and in TRL."""
    work = ("--reward", "random", "--data", "{work}/data/arith.jsonl", "--model", f"{{work}}/models/{model}")
    return _MODELS, *((file, *arguments, *work) for file in ("atrium_step.py", _PEER))


MEASUREMENTS = {
    "gpu_correctness": Measurement(
        programs=(("gpu_tests.py", "test_packed_cuda.py", "test_cuda.py"),),
        small=(("gpu_tests.py", "test_packed_cuda.py"),),
        limit_s=120,
    ),
    "gpu_train": Measurement(
        programs=((*_RUN, "rollout=vllm", "rollout.context_length=1024", "rollout.gpu_memory_fraction=0.3",
                   "model=qwen3_0_6b", "--stop-after", "4", *_WITH_PROFILE),),
        small=(
            ("gpu_run.py", "--stop-after", "4", "debug=tiny_steps", "rollout=vllm_cpu", "model.head_dim=32",
             *_WITH_PROFILE),
        ),
        limit_s=180,
        needs="vllm",
    ),
    "gpu_mismatch": Measurement(
        programs=tuple(
            (*_CHAT, "rollout=vllm", "rollout.context_length=1024", f"rollout.kv_cache_dtype={cache}",
             "rollout.gpu_memory_fraction=0.3")
            for cache in ("auto", "fp8")
        ),
        small=((*_CHAT, "rollout=vllm_cpu", "rollout.context_length=256", "rollout.kv_cache_mb=256",
                "rollout.num_prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8"),),
        limit_s=80,
        needs="pretrained",
    ),
    "gpu_update": Measurement(
        programs=((*_UPDATE, "--model", "qwen3_1_7b"), (*_UPDATE, "--model", "qwen3_0_6b")),
        small=(_SMALL_UPDATE,),
        limit_s=150,
    ),
    "gpu_vllm": Measurement(
        programs=(("gpu_tests.py", "test_vllm_gpu.py"),),
        small=(("gpu_tests.py", "test_vllm_gpu.py"),),
        limit_s=180,
        needs="vllm",
    ),
    "gpu_memory": Measurement(
        programs=tuple(
            (*_RUN, "rollout=transformers", f"model={model}", "--stop-after", "2",
             "checkpoint.every_num_steps=1000")
            for model in ("qwen3_0_6b", "qwen3_1_7b")
        ),
        small=(("gpu_run.py", "--stop-after", "2", "debug=tiny_steps"),),
        limit_s=180,
    ),
    "loss_stage_cuda": Measurement(
        programs=(("loss_stage.py", "--dtype", "bfloat16", "--tokens", "8192", "--width", "2048"),),
        small=(
            ("loss_stage.py", "--repeats", "1", "--tokens", "64", "--width", "32", "--vocabularies", "512"),
        ),
        limit_s=90,
    ),
    "gpu_rollout": Measurement(
        programs=(
            ("vllm_rollout.py", "--dtype", "bfloat16", "--graphs", "--architecture", "qwen3_0_6b",
             "--prompts", "32", "--max-new-tokens", "256", "--kv-cache-mb", "16384", "--rounds", "3"),
        ),
        small=(("vllm_rollout.py", "--prompts", "2", "--max-new-tokens", "8", "--rounds", "1"),),
        limit_s=160,
        needs="vllm",
    ),
    "gpu_learning": Measurement(
        programs=(("gpu_run.py", "algorithm=atr", "num_steps=40"),),
        small=(("gpu_run.py", "debug=tiny_steps", "num_steps=2"),),
        limit_s=110,
    ),
    "gpu_placement": Measurement(
        programs=(
            ("placement.py", "--engine", "vllm", "--model", "qwen3_0_6b", "--rounds", "1", "--steps", "8",
             "rollout.num_prompts=8", "rollout.group_size=8", "rollout.max_new_tokens=256",
             "rollout.gpu_memory_fraction=0.3"),
        ),
        small=(("placement.py", "--rounds", "1", "--steps", "4", "debug=tiny_steps"),),
        limit_s=150,
        needs="server",
    ),
    "gpu_compile": Measurement(
        programs=tuple(
            (*_UPDATE, "--model", "qwen3_0_6b", "--micro-batch-tokens", "16384", *more)
            for more in ((), ("--compile",))
        ),
        small=((*_SMALL_UPDATE, "--dtype", "bfloat16"), (*_SMALL_UPDATE, "--dtype", "bfloat16", "--compile")),
        limit_s=140,
    ),
    "gpu_step": Measurement(
        programs=_steps("30m", "--dtype", "mixed", "--steps", "8", "--max-new-tokens", "128"),
        small=_steps("0p3m", "--steps", "2", "--prompts", "2", "--group", "2", "--max-new-tokens", "4"),
        limit_s=120,
    ),
}  # fmt: skip
"""Measurements by the name of their table; the most important comes first."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu runs a small version as a test")
    add("--minutes", type=float, default=9.0, help="time limit of this call (default %(default)g)")
    add(
        "--only",
        nargs="+",
        choices=tuple(MEASUREMENTS),
        default=list(MEASUREMENTS),
        help="measurements to make",
    )
    add("--again", nargs="+", choices=tuple(MEASUREMENTS), default=[], help="measurements to repeat")
    add("--wheels", type=Path, metavar="FOLDER", help="wheels of the packages that this Python lacks")
    add("--results", type=Path, help="folder of the JSON results (default: results, or the work folder)")
    add("--work", type=Path, default=Path("runs/.cache/gpu-report"), help="folder of intermediate files")
    add("--peer", type=Path, default=Path(".venv-trl/bin/python"), help="a Python that has TRL")
    return options


def with_wheels(folder: Path, work: Path) -> Path:
    """Unpack all wheels of `folder` and return the new folder; the same wheels are unpacked only once."""
    wheels = sorted(folder.glob("*.whl"))
    if archives := sorted(folder.glob("*.tar.gz")):
        names = " ".join(map(str, archives))
        raise SystemExit(
            f"error: {len(archives)} of the packages in {folder} are not wheels; build them on a machine "
            f"with setuptools, then delete the archives: pip wheel --no-deps --wheel-dir {folder} {names}"
        )
    if not wheels:
        raise SystemExit(f"error: there are no wheels in {folder}")
    name = hashlib.sha256("\n".join(wheel.name for wheel in wheels).encode()).hexdigest()[:12]
    site = (work / f"site-{name}").absolute()
    if not site.is_dir():
        partial = site.with_name(f"{site.name}.partial")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(partial), *map(str, wheels)], check=True)
        partial.rename(site)
    return site


def missing_packages() -> list[str]:
    """Return, for each imported package that does not meet pyproject.toml, what is missing."""
    from atrium.assemble.doctor import PLATFORM, requirement_name, requirements, unmet

    wanted = requirements()
    used = [one for one in wanted[""] + wanted[PLATFORM] if requirement_name(one) not in UNUSED]
    used += [one for one in wanted.get("dev", []) if requirement_name(one) in ("pytest", "pytest-timeout")]
    return [reason for one in used if (reason := unmet(one))]


def commands(name: str, args: argparse.Namespace) -> Iterator[list[str]]:
    """Return the command lines of a measurement's programs."""
    measurement = MEASUREMENTS[name]
    for file, *arguments in measurement.small if args.device == "cpu" else measurement.programs:
        python = args.peer if file == _PEER and args.peer.exists() else sys.executable
        device = [] if file == _MODELS[0] else ["--device", args.device]
        given = [argument.format(work=args.work) for argument in arguments]
        yield [str(python), str(HERE / file), *device, *given]


def records_of(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float, log: Path
) -> tuple[list[dict[str, Any]], str | None]:
    """Run a program; return its JSON records, and the reason for a failure or timeout (None on success)."""
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
        ) as process,
    ):
        reason = None
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            reason = f"{Path(command[1]).name} {_TOO_LONG} {limit_s:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if reason is None and process.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        reason = f"{Path(command[1]).name} ended with exit code {process.returncode}: {''.join(last)[:200]}"
    complete = output[: output.rfind(b"\n") + 1].splitlines()
    return [json.loads(line) for line in complete if line.startswith(b"{")], reason


def lacking(needs: str | None) -> str | None:
    """Return why a requirement of a measurement is not met; None if it is met."""
    from atrium.base.errors import MissingDependencyError
    from atrium.engines.vllm_environment import check_serving

    if needs is not None and find_spec("vllm") is None:
        return "vllm is not installed"
    if needs == "pretrained" and not (PRETRAINED / "config.json").is_file():
        return f"there is no pretrained model in {PRETRAINED.relative_to(REPOSITORY)} (make pretrained)"
    try:
        if needs == "server":
            check_serving()
    except MissingDependencyError as error:
        return error.line
    return None


def is_done(result: Mapping[str, Any] | None) -> bool:
    """Return whether a measurement succeeded, or failed for a reason other than a timeout."""
    return result is not None and _TOO_LONG not in (result["failed"] or "")


def measure(name: str, args: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """Run a measurement and write its JSON; return why it is incomplete, or None."""
    measurement = MEASUREMENTS[name]
    load, started = os.getloadavg()[0], time.monotonic()
    # On a CPU the programs only show that they work, so a busy machine gets more time.
    limit_s = measurement.limit_s if args.device == "cuda" else 3600
    records: list[dict[str, Any]] = []
    if (reason := lacking(measurement.needs)) is None:
        for command in commands(name, args):
            program = Path(command[1])
            if program.name == _PEER and not args.peer.exists() and find_spec("trl") is None:
                reason = reason or f"TRL is not installed, neither here nor at {args.peer}"
                continue
            left_s = limit_s - (time.monotonic() - started)
            found, failed = records_of(command, environment, max(left_s, 1.0), args.work / f"{name}.log")
            records += [{"program": program.stem, **one} for one in found]
            reason = reason or failed
    seconds = round(time.monotonic() - started, 1)
    suite.write_result(name, records, load, args, seconds=seconds, failed=reason)
    return reason


def main() -> None:
    """Run the measurements that fit into the time of this call, and print which are left."""
    began = time.monotonic()
    args = parser().parse_args()
    args.size = "small" if args.device == "cpu" else "full"
    if args.results is None:
        args.results = args.work / "results" if args.size == "small" else HERE / "results"
    args.work.mkdir(parents=True, exist_ok=True)
    paths = [str(REPOSITORY / "platform"), *filter(None, [os.environ.get("PYTHONPATH")])]
    if args.wheels is not None:
        paths.insert(0, str(with_wheels(args.wheels, args.work)))
        sys.path.insert(0, paths[0])
    from atrium.config.machine import num_usable_cores, this_machine

    if missing := missing_packages():
        lines = "\n".join(f"  {reason}" for reason in missing)
        raise SystemExit(f"error: packages are missing; give WHEELS=FOLDER with their wheels:\n{lines}")
    if args.device == "cuda" and not this_machine().has_cuda:
        raise SystemExit("error: there is no CUDA device; use --device cpu for a small test")
    quiet = {"HF_HUB_OFFLINE": "1", "ATRIUM_MIRRORS": "off", "ATRIUM_NO_LOCAL": "1"}
    quiet |= {"OMP_NUM_THREADS": str(num_usable_cores())}
    if args.device == "cpu":
        quiet |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}
    left = []
    found = {
        name: None if name in args.again else tables.read_result(args.results, name) for name in args.only
    }
    # Measurements that timed out in an earlier call come last, so that they do not delay the others.
    for name in sorted(args.only, key=lambda name: found[name] is not None):
        if is_done(found[name]):
            continue
        if time.monotonic() + MEASUREMENTS[name].limit_s > began + 60.0 * args.minutes:
            left.append(name)
            continue
        print(f"{tables.TITLES[name]} (at most {MEASUREMENTS[name].limit_s} s)", file=sys.stderr, flush=True)
        if (reason := measure(name, args, environment)) is not None:
            print(f"  {reason}", file=sys.stderr, flush=True)
    conclude(args, left)


def conclude(args: argparse.Namespace, left: Sequence[str]) -> None:
    """Print the tables, the failed measurements, and the measurements left for another call."""
    done = {name: result for name in args.only if (result := tables.read_result(args.results, name))}
    failed = {name: result["failed"] for name, result in done.items() if result["failed"]}
    tables.print_tables(args.results, list(done), failed | LEFT_OUT)
    if args.results == HERE / "results":
        text = tables.PAGE.read_text(encoding="utf-8")
        tables.PAGE.write_text(tables.renewed(text, args.results), encoding="utf-8")
        print(f"the tables are in {tables.PAGE.relative_to(REPOSITORY)}", file=sys.stderr)
    again = f"not yet measured: {', '.join(left)}; run the same command again" if left else "all is done"
    print(again, file=sys.stderr)


if __name__ == "__main__":
    main()
