"""Time the grader: graded completions per second, and per second of CPU time.

There are two workloads, in which about half of the answers are correct. *aime*: integers in [0, 999], as in
an AIME evaluation of 30 problems. *math*: LaTeX reference answers. Each is answered by itself, by itself in
another notation, by itself with one digit or sign changed, and by the reference answer of a random problem.
Reference answers come from a JSONL file with a field `answer`, such as MATH-500; without a file, from a short
list below with the same kinds of answers.

Each workload gets a new pool, so no results are cached from another workload. The CPU time includes the
worker processes but not their start (loading SymPy), which is timed separately. `answers_per_core_s` is the
number of answers divided by the CPU time.

    python benchmarks/grading_throughput.py [--golds math500.jsonl] [--num-answers 10000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import psutil

from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier

SHARED = os.environ.get("ATRIUM_SHARED_BENCHMARKS", "../shared/benchmarks")
GOLDS = (
    r"\frac{3}{8}", r"\left( 2, \frac{\pi}{3} \right)", "a + b", "12", r"\sqrt{13}", "-7",
    "x^2 - 4x + 7", "0.25", r"\frac{2\sqrt{5}}{3}", r"\text{Thursday}", r"(-\infty, 4)", "[2, 7]",
    "1,024", r"60^\circ", r"15\%", "3 + 2i", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"\{1, 3, 5\}", "2, 6", r"\text{(B)}", "y = 3x - 2", r"5\pi", r"\binom{9}{4}", "2^{10}",
    r"\frac{n(n+1)}{2}", r"\tan x", "11001_2", r"\frac{1}{2}, -3", r"6\text{ cm}", "88",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--golds",
        type=Path,
        default=Path(SHARED) / "math500.jsonl",
        help="JSONL file with the field `answer`",
    )
    parser.add_argument(
        "--num-answers",
        type=int,
        default=10_000,
        help="number of answers of the aime workload (default 10000)",
    )
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes (default 1)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    golds = read_golds(arguments.golds)
    print(json.dumps({"workload": "start of a worker", **time_start(arguments.workers)}))
    for name, work in (("aime", aime(arguments.num_answers, rng)), ("math", math(golds, rng))):
        print(json.dumps({"workload": name, **time_workload(work, arguments.workers)}))


def read_golds(path: Path) -> list[str]:
    if not path.is_file():
        return list(GOLDS)
    return [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines()]


def aime(num_answers: int, rng: random.Random) -> list[tuple[str, str]]:
    """Return `num_answers` integer completions with their reference answers; every second one is correct."""
    golds = [str(rng.randrange(1000)) for _ in range(30)]
    work = []
    for index in range(num_answers):
        gold = golds[index % len(golds)]
        answer = gold if index % 2 else str(rng.randrange(1000))
        work.append((f"Adding the two cases gives $m + n = {answer}$.\n\n$$\\boxed{{{answer}}}$$", gold))
    return work


def math(golds: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """Return four completions per reference answer: usually two correct and two wrong ones."""
    work = [
        (f"Therefore the answer is $\\boxed{{{answer}}}$.", gold)
        for gold in golds
        for answer in (gold, respelled(gold, rng), changed(gold, rng), rng.choice(golds))
    ]
    rng.shuffle(work)
    return work


def respelled(gold: str, rng: random.Random) -> str:
    answer = gold.replace(r"\frac", r"\dfrac").replace(r"\left", "").replace(r"\right", "")
    return rng.choice((f" {answer} ", f"{answer}.", answer.replace("+", " + ").replace(",", ", ")))


def changed(gold: str, rng: random.Random) -> str:
    digits = [index for index, character in enumerate(gold) if character.isdigit()]
    if not digits:
        return gold.replace("+", "-") if "+" in gold else f"{gold}+1"
    place = rng.choice(digits)
    return f"{gold[:place]}{(int(gold[place]) + rng.randrange(1, 10)) % 10}{gold[place + 1 :]}"


def time_start(num_workers: int) -> dict[str, float]:
    """Time the start of a pool until its first verdict."""
    started = time.perf_counter()
    with GraderPool(MathVerifier(num_workers=num_workers, timeout_s=5.0, memory_limit_mb=1024)) as pool:
        pool.grade(r"\boxed{\log x + 1}", r"\log x")
        return {"wall_s": round(time.perf_counter() - started, 3)}


def time_workload(work: list[tuple[str, str]], num_workers: int) -> dict[str, float]:
    """Time a workload from the first submission to the last verdict, without the start of the workers."""
    with GraderPool(MathVerifier(num_workers=num_workers, timeout_s=5.0, memory_limit_mb=1024)) as pool:
        pool.grade(r"\boxed{\log x + 1}", r"\log x")
        cpu, started = processor_s(pool), time.perf_counter()
        futures = [pool.submit(text, gold) for text, gold in work]
        num_settled = sum(future.done() for future in futures)
        verdicts = [future.result() for future in futures]
        wall, cpu = time.perf_counter() - started, processor_s(pool) - cpu
    return {
        "num_answers": len(work),
        "correct_frac": round(sum(verdict.is_correct for verdict in verdicts) / len(work), 3),
        "to_workers_frac": round(1 - num_settled / len(work), 4),
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "answers_per_s": round(len(work) / wall),
        "answers_per_core_s": round(len(work) / cpu),
    }


def processor_s(pool: GraderPool) -> float:
    """Return the CPU seconds used so far by this process and the pool's workers."""
    times = [psutil.Process(pid).cpu_times() for pid in pool.worker_process_ids()]
    # The resolution for other processes is 0.01 s, which is more than a small workload takes.
    return time.process_time() + sum(one.user + one.system for one in times)


if __name__ == "__main__":
    main()
