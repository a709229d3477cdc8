"""`make gpu-report`: what only a GPU can say, in at most 28 minutes, in calls of at most nine.

Measurements run one after the other, the most valuable first, each in processes of its own and for no longer
than its limit. What one finds, or why it could not, is a JSON file that a later call does not repeat: give
the same command again until it says that all is done. Where no package index is reached, the packages that
it names come from a folder of wheels. vLLM and TRL are measured where they are; mlflow, wandb, optuna and
the dashboard's packages are not needed.

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
sys.path[:0] = [str(REPOSITORY / "platform")]  # where nothing is installed

import suite  # noqa: E402
import tables  # noqa: E402

UNUSED = {"mlflow", "wandb", "optuna", "fastapi", "uvicorn"}
"""Packages of the base install that nothing here imports: trackers, sweeps and the dashboard."""
_PEER = "trl_step.py"
_TOO_LONG = "took more than"
LEFT_OUT = {
    "TRL's asynchronous trainer": "it sends weights by NCCL to a vLLM server, which needs a GPU of its own",
    "several GPUs": "one is measured",
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Programs of this folder with their arguments, on a GPU and as small as shows that they work.

    `limit_s` seconds are what all of them have together; `needs` is what there is nothing to measure without:
    `vllm`, or `server`, a vLLM whose server is supported.
    """

    programs: tuple[tuple[str, ...], ...]
    small: tuple[tuple[str, ...], ...]
    limit_s: int
    needs: Literal["vllm", "server"] | None = None


_UPDATE = ("update_throughput.py", "--dtype", "bfloat16", "--completions", "64", "--repeats", "3")
_SMALL_UPDATE = (
    "update_throughput.py", "--model", "qwen2_5_math_1_5b", "--repeats", "1", "--completions", "8",
    "--group", "4", "--median", "8", "--longest", "16", "--micro-batch-tokens", "512", "--set",
    "model.architecture.num_hidden_layers=2", "model.architecture.hidden_size=96",
    "model.architecture.vocab_size=512", "model.architecture.intermediate_size=64",
)  # fmt: skip
_RUN = (
    "gpu_run.py", "model.weights=random", "debug=tiny_steps", "rollout.max_new_tokens=512",
    "rollout.group_size=32", "checkpoint.every_num_steps=1000",
    "checkpoint.keep_best=false",
)  # fmt: skip
_MODELS = ("make_models.py", "{work}")


def _steps(model: str, *arguments: str) -> tuple[tuple[str, ...], ...]:
    """The same steps in Atrium and in TRL."""
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
                   "model=qwen3_0_6b", "--stop-after", "3"),),
        small=(
            ("gpu_run.py", "--stop-after", "3", "debug=tiny_steps", "rollout=vllm_cpu", "model.head_dim=32"),
        ),
        limit_s=200,
        needs="vllm",
    ),
    "gpu_update": Measurement(
        programs=((*_UPDATE, "--model", "qwen3_1_7b"), (*_UPDATE, "--model", "qwen3_0_6b")),
        small=(_SMALL_UPDATE,),
        limit_s=200,
    ),
    "gpu_vllm": Measurement(
        programs=(("gpu_tests.py", "test_vllm_gpu.py"),),
        small=(("gpu_tests.py", "test_vllm_gpu.py"),),
        limit_s=180,
        needs="vllm",
    ),
    "gpu_memory": Measurement(
        programs=tuple(
            (*_RUN, "rollout=transformers", f"model={model}", "--stop-after", "2")
            for model in ("qwen3_0_6b", "qwen3_1_7b")
        ),
        small=(("gpu_run.py", "--stop-after", "2", "debug=tiny_steps"),),
        limit_s=200,
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
        limit_s=120,
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
"""By the name of their table, in the order of their value."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: in small, to see that it works")
    add("--minutes", type=float, default=9.0, help="of this call (default %(default)g)")
    add("--only", nargs="+", choices=tuple(MEASUREMENTS), default=list(MEASUREMENTS), help="which to make")
    add(
        "--again", nargs="+", choices=tuple(MEASUREMENTS), default=[], help="made anew although they are done"
    )
    add("--wheels", type=Path, metavar="FOLDER", help="wheels of the packages that this Python lacks")
    add("--results", type=Path, help="where the JSON goes (default: results beside this, or the work folder)")
    add("--work", type=Path, default=Path("runs/.cache/gpu-report"), help="what is needed on the way")
    add("--peer", type=Path, default=Path(".venv-trl/bin/python"), help="a Python that has TRL")
    return options


def with_wheels(folder: Path, work: Path) -> Path:
    """The folder in which all wheels of `folder` are unpacked; done once for the same wheels."""
    wheels = sorted(folder.glob("*.whl"))
    if archives := sorted(folder.glob("*.tar.gz")):
        names = " ".join(map(str, archives))
        raise SystemExit(
            f"error: {len(archives)} of the packages in {folder} are no wheels; build them where setuptools "
            f"is, then delete the archives: pip wheel --no-deps --wheel-dir {folder} {names}"
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
    """Why each package that is imported on the way cannot be, as pyproject.toml asks for it."""
    from atrium.assemble.doctor import PLATFORM, requirement_name, requirements, unmet

    wanted = requirements()
    used = [one for one in wanted[""] + wanted[PLATFORM] if requirement_name(one) not in UNUSED]
    used += [one for one in wanted.get("dev", []) if requirement_name(one) in ("pytest", "pytest-timeout")]
    return [reason for one in used if (reason := unmet(one))]


def commands(name: str, args: argparse.Namespace) -> Iterator[list[str]]:
    """The programs of a measurement, as this Python is to run them."""
    measurement = MEASUREMENTS[name]
    for file, *arguments in measurement.small if args.device == "cpu" else measurement.programs:
        python = args.peer if file == _PEER and args.peer.exists() else sys.executable
        device = [] if file == _MODELS[0] else ["--device", args.device]
        given = [argument.format(work=args.work) for argument in arguments]
        yield [str(python), str(HERE / file), *device, *given]


def records_of(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float, log: Path
) -> tuple[list[dict[str, Any]], str | None]:
    """What a program prints, and why it ended before its time: None where it did not."""
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
    """Why what a measurement needs is not there; None where it is."""
    from atrium.base.errors import MissingDependencyError
    from atrium.engines.vllm_environment import check_serving

    if needs is not None and find_spec("vllm") is None:
        return "vllm is not installed"
    try:
        if needs == "server":
            check_serving()
    except MissingDependencyError as error:
        return error.line
    return None


def is_done(result: Mapping[str, Any] | None) -> bool:
    """Whether a measurement has its result, or a reason why it has none other than a lack of time."""
    return result is not None and _TOO_LONG not in (result["failed"] or "")


def measure(name: str, args: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """Make a measurement and write its JSON; why it is not whole, or None."""
    measurement = MEASUREMENTS[name]
    load, started = os.getloadavg()[0], time.monotonic()
    # In small nothing is timed: a machine that is busy may take as long as it likes.
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
    """Make what this call has time for, and say what is left."""
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
        raise SystemExit("error: there is no CUDA device; --device cpu shows in small that the report works")
    quiet = {"HF_HUB_OFFLINE": "1", "ATRIUM_MIRRORS": "off", "ATRIUM_NO_LOCAL": "1"}
    quiet |= {"OMP_NUM_THREADS": str(num_usable_cores())}
    if args.device == "cpu":
        quiet |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}
    left = []
    found = {
        name: None if name in args.again else tables.read_result(args.results, name) for name in args.only
    }
    # What took too long in an earlier call comes last, so that it keeps nothing from being measured.
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
    """Print the tables, what could not be measured, and what another call has yet to do."""
    done = {name: result for name in args.only if (result := tables.read_result(args.results, name))}
    failed = {name: result["failed"] for name, result in done.items() if result["failed"]}
    tables.print_tables(args.results, list(done), failed | LEFT_OUT)
    if args.results == HERE / "results":
        text = tables.PAGE.read_text(encoding="utf-8")
        tables.PAGE.write_text(tables.renewed(text, args.results), encoding="utf-8")
        print(f"the tables are in {tables.PAGE.relative_to(REPOSITORY)}", file=sys.stderr)
    again = f"not yet measured: {', '.join(left)}; give the same command again" if left else "all is done"
    print(again, file=sys.stderr)


if __name__ == "__main__":
    main()
