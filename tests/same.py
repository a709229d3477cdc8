"""Whether two states of the code compute and say the same: `make same BASE=COMMIT`.

A change that is meant to move code and no number is shown to be one. This checkout and the commit BASE run
side by side on one machine, and four things are compared:

- objectives: loss, gradient and entropy gradient of every method on fixed batches in float64, bit for bit;
- training: 80 steps of six methods that between them use windows constant and per token, every kind of
  surrogate, a KL in the weight, selection by key, resampling and all reductions: every repeatable metric,
  every evaluation and the final weights, and the CPU seconds that both took;
- words: what the command line prints for every method and experiment, for pages, and for 300 wrong settings;
- studies: what is printed and written, figures included, about a comparison, a sweep, a claim, a run and
  methods side by side, from recorded and made-up outcomes.

Numbers are equal or this fails. Words are shown as a diff, which is to be read.

A series of moves is compared with its beginning: `make same ARGS="--write FILE"` records digests of all parts
in a file, and `make same ARGS="--with FILE"` names what has changed since. Those of objectives and training
hold for one kind of machine and the versions that the file names; those of words and studies elsewhere too.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
METHODS = ("atr", "dapo", "gvpo", "rpg_reinforce_urkl", "clip_cov", "dppo_binary_tv")
NUM_CASES = 4
NUM_MISTAKES = 300
WRONG_VALUES = ("-1", "0", "1e9", "nan", "inf", "word", "null", "true", "[]", "{}", "''", "1e-300")
MAX_SHOWN_LINES = 400
WRITTEN = {".svg", ".html", ".tex", ".md", ".csv"}  # PNG files show the same; JSON files hold times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit that is compared (HEAD)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some of the parts")
    parser.add_argument("--steps", type=int, default=80, help="steps of each method that is trained")
    parser.add_argument("--write", type=Path, help="record digests of this checkout in a file")
    parser.add_argument("--with", type=Path, dest="record", help="compare this checkout with such a file")
    arguments = parser.parse_args()
    if arguments.write or arguments.record:
        return compare_with_record(arguments)
    with tempfile.TemporaryDirectory() as folder, checkout(arguments.base, Path(folder)) as base:
        trees = {"base": base, "here": HERE}
        out = {name: Path(folder) / "out" / name for name in trees}
        same = True
        for part in arguments.only:
            record, compare = PARTS[part]
            record(trees, out, arguments.steps)
            same &= compare(out)
    return 0 if same else 1


def compare_with_record(arguments: argparse.Namespace) -> int:
    """Record this checkout's digests, or compare them with a file's."""
    with tempfile.TemporaryDirectory() as folder:
        out = {"here": Path(folder)}
        found: dict[str, object] = {"machine": machine(), "steps": arguments.steps}
        for part in arguments.only:
            PARTS[part][0]({"here": HERE}, out, arguments.steps)
            found[part] = DIGESTS[part](Path(folder))
    if arguments.write:
        write_json(arguments.write, found)
        return 0
    return 0 if compare_digests(read_json(arguments.record), found, arguments.only) else 1


def compare_digests(recorded: Mapping, found: Mapping, parts: Sequence[str]) -> bool:
    """Say which digests differ from the recorded ones; False where some do."""
    if recorded["machine"] != found["machine"]:
        say(f"recorded on {recorded['machine']}, this is {found['machine']}: last bits of numbers may differ")
    same = True
    for part in parts:
        before, now = recorded[part], found[part]
        changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        said = f": {', '.join(changed)}" if changed else ""
        say(f"{part}: {len(before)} recorded, {len(changed)} differ{said}")
        same &= not changed
    return same


def machine() -> dict[str, str]:
    """What numbers depend on in their last bits."""
    processor = load_module(HERE / "benchmarks" / "record.py").machine("cpu")["processor"]
    return {"processor": processor, **{name: version(name) for name in ("torch", "transformers", "numpy")}}


def digests_of_objectives(out: Path) -> dict[str, str]:
    found = read_json(out / "objectives" / "found.json")
    return {name: digest(json.dumps(value, sort_keys=True).encode()) for name, value in found.items()}


def digests_of_training(out: Path) -> dict[str, str]:
    found = {}
    for method in METHODS:
        run = read_run(out / "training", method)
        for part in ("metrics", "evaluations", "weights"):
            found[f"{method} {part}"] = digest(json.dumps(run[part], sort_keys=True).encode())
    return found


def digests_of_texts(out: Path) -> dict[str, str]:
    return {path.name: digest(path.read_bytes()) for path in sorted(out.iterdir())}


@contextlib.contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit in a worktree of its own, which is removed afterwards."""
    path = folder / "base"
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def environment(tree: Path) -> dict[str, str]:
    """What a program of `tree` runs under: its own package, one quiet thread, no network, no mirrors."""
    return os.environ | {
        "PYTHONPATH": str(tree / "platform"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "ATRIUM_MIRRORS": "off",
    }


def record_apart(part: str, trees: Mapping[str, Path], out: Mapping[str, Path]) -> None:
    """Run this file's `--record PART` in each tree, side by side."""

    def record(name: str) -> None:
        (out[name] / part).mkdir(parents=True)
        command = [sys.executable, __file__, "--record", part, str(trees[name]), str(out[name] / part)]
        subprocess.run(command, check=True, env=environment(trees[name]), cwd=out[name])

    with ThreadPoolExecutor() as pool:
        list(pool.map(record, trees))


# Objectives


def record_objectives(trees: Mapping[str, Path], out: Mapping[str, Path], _steps: int) -> None:
    record_apart("objectives", trees, out)


def compute_objectives(tree: Path, out: Path) -> None:
    """Digests of what each method computes, by its own tree's tests' batches and composition."""
    folders = [
        tree / "tests" / name for name in ("method", "objective")
    ]  # objective: before the two were one
    shared = load_module(next(path for folder in folders if (path := folder / "conftest.py").exists()))
    found = {}
    for name in shared.PRESETS:
        objective = shared.composed(name).objective
        for seed in range(NUM_CASES):
            case = shared.random_case(seed)
            for kind, chosen in (("off-policy", case), ("on-policy", case.on_policy())):
                step = shared.run_step(objective, chosen)
                found[f"{name} {kind} {seed}"] = {
                    "loss": step.loss.item().hex(),
                    "gradient": digest(step.gradient_BT.numpy().tobytes()),
                    "entropy gradient": digest(step.entropy_gradient_BT.numpy().tobytes()),
                    "norm": step.gradient_BT.norm().item().hex(),
                    "sums": {
                        quantity.name: (float(total).hex(), float(count))
                        for quantity, (total, count) in sorted(
                            step.output.sums.items(), key=lambda item: item[0].name
                        )
                    },
                }
    write_json(out / "found.json", found)


def compare_objectives(out: Mapping[str, Path]) -> bool:
    base, here = (read_json(out[name] / "objectives" / "found.json") for name in ("base", "here"))
    added = set()
    for key in base.keys() & here.keys():
        old, new = base[key].get("sums", {}), here[key].get("sums", {})
        added |= new.keys() - old.keys()
        here[key] |= {"sums": {name: new.get(name) for name in old}} if old else {}
    different = [key for key in base if key in here and base[key] != here[key]]
    lost, new = sorted(base.keys() - here.keys()), sorted(here.keys() - base.keys())
    say(f"objectives: {len(base)} batches, {len(different)} differ, {len(lost)} gone, {len(new)} new")
    if added:
        say(f"  measured besides, and not compared: {', '.join(sorted(added))}")
    for key in different[:MAX_SHOWN_LINES]:
        parts = [name for name in base[key] if base[key][name] != here[key].get(name)]
        norms = [float.fromhex(found[key]["norm"]) for found in (base, here)]
        say(f"  {key}: {', '.join(parts)}; gradient norm {norms[0]:.9g}, now {norms[1]:.9g}")
    for key in lost + new:
        say(f"  {'gone' if key in lost else 'new'}: {key}")
    return not different and not lost


# Training


def record_training(trees: Mapping[str, Path], out: Mapping[str, Path], steps: int) -> None:
    """Train each method in both trees at the same time, on one thread each."""

    def train(name: str, method: str) -> None:
        runs = out[name] / "training"
        runs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "atrium", "train", f"algorithm={method}", f"num_steps={steps}"]
        command += [f"runs_dir={runs}", f"experiment_name={method}", "compute.num_threads=1"]
        with (runs / f"{method}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment(trees[name]), cwd=runs, stdout=log, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(process.pid, 0)
        write_json(runs / f"{method}.json", {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime})

    with ThreadPoolExecutor() as pool:
        for method in METHODS:
            list(pool.map(lambda name, method=method: train(name, method), trees))


def compare_training(out: Mapping[str, Path]) -> bool:
    same = True
    for method in METHODS:
        found = {name: read_run(out[name] / "training", method) for name in out}
        base, here = found["base"], found["here"]
        for part in ("metrics", "evaluations"):
            here[part] = shared_quantities(base[part], here[part])
        parts = [part for part in base if part != "cpu_s" and base[part] != here[part]]
        same &= not parts
        said = "equal" if not parts else f"DIFFER in {', '.join(parts)}"
        ratio = here["cpu_s"] / base["cpu_s"]
        say(f"training {method}: {said}; {base['cpu_s']:.1f} CPU s, now {here['cpu_s']:.1f} ({ratio:.2f})")
        for part in ("metrics", "evaluations"):
            for number, (old, new) in enumerate(zip(base[part], here[part], strict=False), 1):
                names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
                if names:
                    shown = f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
                    say(f"  first in record {number} of {part}: {shown}")
                    break
    return same


def shared_quantities(base: list[dict], here: list[dict]) -> list[dict]:
    """The records of this checkout without the quantities that the commit does not record at all."""
    known = {name for line in base for name in line}
    return [{name: value for name, value in line.items() if name in known} for line in here]


def read_run(runs: Path, method: str) -> dict[str, object]:
    """What a finished run must share with another of the same settings, and its CPU seconds."""
    from atrium.base.metrics import is_repeatable  # the parent process alone reads runs

    ended = read_json(runs / f"{method}.json")
    log = (runs / f"{method}.log").read_text(encoding="utf-8")
    if ended["status"] != 0:
        raise SystemExit(f"training {method} failed:\n{log}")
    [run] = [path.parent for path in (runs / method).glob("*/metrics.jsonl")]
    checkpoint = max((run / "checkpoints").glob("step-*"))
    return {
        "metrics": [repeatable(line, is_repeatable) for line in read_lines(run / "metrics.jsonl")],
        "evaluations": [repeatable(line, is_repeatable) for line in read_lines(run / "evaluations.jsonl")],
        "weights": {
            path.name: digest(path.read_bytes()) for path in (checkpoint / "policy").glob("*.safetensors")
        },
        "cpu_s": ended["cpu_s"],
    }


def repeatable(record: Mapping[str, object], is_repeatable) -> dict[str, object]:
    left_out = {"time", "duration_s", "seconds"}
    return {name: value for name, value in record.items() if name not in left_out and is_repeatable(name)}


# Words


def record_words(trees: Mapping[str, Path], out: Mapping[str, Path], _steps: int) -> None:
    record_apart("words", trees, out)


def write_words(tree: Path, out: Path) -> None:
    """What the command line says, a file each; paths of the tree are left out."""
    presets = sorted(path.stem for path in (HERE / "conf" / "algorithm").glob("*.yaml"))
    experiments = sorted(path.stem for path in (HERE / "conf" / "experiment").glob("*.yaml"))
    said = {
        "methods.md": answer(tree, "objectives", "--markdown"),
        "objectives.json": answer(tree, "objectives", "--json"),
        "windows.json": answer(tree, "windows", "--json", "--no-figures"),
    }
    said |= {f"algorithm-{name}": answer(tree, "config", f"algorithm={name}") for name in presets}
    said |= {f"experiment-{name}": answer(tree, "config", f"experiment={name}") for name in experiments}
    said["mistakes"] = "\n".join(
        f"{' '.join(mistake)}\n  {answer(tree, 'config', *mistake)[:600]}" for mistake in mistakes(presets)
    )
    for name, text in said.items():
        (out / name).write_text(text, encoding="utf-8")


def answer(tree: Path, *arguments: str) -> str:
    """Standard output and error of a command, in this process."""
    from atrium.cli import main as atrium  # of the tree that is on the path

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = atrium(arguments)
    said = text.getvalue().replace(str(tree), "TREE")
    return said if code == 0 else f"{said}exit {code}"


def mistakes(presets: list[str]) -> list[list[str]]:
    """Overrides that are mostly wrong, the same ones for both trees."""
    draw = random.Random(0)
    keys = sorted(SETTINGS.split())
    found = []
    for _ in range(NUM_MISTAKES):
        key = draw.choice(keys)
        if draw.random() < 0.2:
            place = draw.randrange(len(key))
            key = key[:place] + key[place + 1 :]
        found.append([f"algorithm={draw.choice(presets)}", f"{key}={draw.choice(WRONG_VALUES)}"])
    return found


SETTINGS = """
    seed num_steps experiment_name runs_dir checkpoint.every_num_steps checkpoint.keep_last algorithm.name
    algorithm.log_ratio_limit algorithm.advantage.baseline algorithm.advantage.scale
    algorithm.advantage.ddof algorithm.advantage.epsilon algorithm.advantage.offset
    algorithm.advantage.returns algorithm.advantage.discount algorithm.ratio.gate.level
    algorithm.ratio.gate.anchor algorithm.ratio.weight.level algorithm.ratio.weight.cap
    algorithm.ratio.weight.order algorithm.surrogate.kind algorithm.surrogate.gradient
    algorithm.surrogate.cap algorithm.surrogate.beta algorithm.token_weight.kind algorithm.token_weight.frac
    algorithm.correction.kind algorithm.correction.cap algorithm.reduction.kind algorithm.reduction.constant
    algorithm.group_filter.kind algorithm.group_filter.max_num_rounds algorithm.reference.kind
    divergence.kind divergence.delta divergence.epsilon_low divergence.epsilon_high divergence.lower
    divergence.upper regularizer.kl regularizer.kl.coefficient regularizer.kl.estimator
    regularizer.kl.placement regularizer.kl.anchor regularizer.entropy regularizer.entropy.coefficient
    rollout.kind rollout.num_prompts rollout.group_size rollout.max_new_tokens rollout.temperature
    rollout.lag rollout.placement rollout.max_mismatch optimizer.kind optimizer.learning_rate
    optimizer.weight_decay optimizer.max_grad_norm optimizer.num_minibatches optimizer.num_epochs
    compute.device compute.dtype compute.num_threads compute.micro_batch_tokens compute.packing
    compute.on_oom compute.behavior_logprobs compute.num_processes evaluation.num_samples
    evaluation.temperature evaluation.top_p evaluation.every_num_steps evaluation.seed grader.kind
    grader.timeout_s grader.num_workers reward.kind model.weights model.thinking model.prompt model.lora
    dataset.num_test dataset.seed benchmark.kind tracking.kind algorithm divergence regularizer model
    dataset benchmark compute rollout optimizer reward grader evaluation tracking experiment
"""


def compare_words(out: Mapping[str, Path]) -> bool:
    return compare_texts(out, "words")


def compare_texts(out: Mapping[str, Path], part: str) -> bool:
    folders = [out[name] / part for name in ("base", "here")]
    names = sorted({path.name for folder in folders for path in folder.iterdir()})
    lines: list[str] = []
    for name in names:
        old, new = (read_text_lines(folder / name) for folder in folders)
        lines += difflib.unified_diff(old, new, f"base/{name}", f"here/{name}", lineterm="", n=1)
    say(f"{part}: {len(names)} texts, {'equal' if not lines else f'{len(lines)} lines of differences'}")
    for line in lines[:MAX_SHOWN_LINES]:
        say(f"  {line}")
    if len(lines) > MAX_SHOWN_LINES:
        say(f"  ... and {len(lines) - MAX_SHOWN_LINES} more")
    return not lines


# Studies


def record_studies(trees: Mapping[str, Path], out: Mapping[str, Path], _steps: int) -> None:
    record_apart("studies", trees, out)


def write_studies(tree: Path, out: Path) -> None:
    """What commands say and write about five studies, a file each. Pictures are those of SVG."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        runs = Path("runs")
        shutil.copytree(tree / "tests" / "recorded" / "6991847" / "recorded", runs / "recorded")
        finish_sweep(tree, runs)
        write_outcomes(Path("outcomes.csv"))
        names = sorted(path.name for path in (runs / "recorded").iterdir())
        whole = [name for name in names if re.search("-s[012]-", name)]
        said = {
            "comparison": answer(tree, "report", *whole, "--out", "report"),
            "unfinished": answer(tree, "report", "recorded", "--out", "unfinished"),
            "sweep": answer(tree, "sweep", "report", "small"),
            "claim": answer(tree, "claim", "check", "atr/figure_2d", "outcomes.csv", "--scale", "laptop"),
            "run": answer(tree, "show", whole[0]),
            "methods": answer(tree, "objectives", "atr", "grpo", "dapo"),
            "windows": answer(tree, "windows", "kl3", "ratio", "--out", "windows"),
        }
        for path in sorted(Path().rglob("*")):
            if path.suffix in WRITTEN and not {"recorded", ".cache"} & set(path.parts):
                said["-".join(path.parts)] = path.read_text(encoding="utf-8")
        for name, text in said.items():
            text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "NOW", text)
            text = re.sub(r"just now|\d+ (min|h|days) ago", "SOME TIME ago", text)
            (out / name).write_text(text, encoding="utf-8")


def finish_sweep(tree: Path, runs: Path) -> None:
    """A finished sweep whose outcomes follow a formula, by the stand-in of the tree's tests."""
    from atrium.sweep.files import validated_definition  # of the tree that is on the path
    from atrium.sweep.setup import prepare
    from atrium.sweep.storage import SweepStorage, storage_url

    sweeps = load_module(tree / "tests" / "sweep" / "conftest.py")
    base = ["experiment=stress", "num_steps=4", "optimizer.num_warmup_steps=1"]
    definition = validated_definition(
        {
            "name": "small",
            "question": "Which delta?",
            "base": [*base, "algorithm=atr"],
            "space": {"divergence.delta": {"low": 0.002, "high": 0.2, "log": True, "num": 5}},
            "seeds": [0, 1, 2],
            "trials": 5,
            "baseline": {
                "base": [*base, "algorithm=grpo"],
                "space": {"divergence.delta": {"low": 0.1, "high": 0.5, "num": 3}},
            },
            "final": {"seeds": [70, 71, 72, 73, 74]},
            "runs_dir": str(runs),
        },
        source="small.yaml",
    )
    storage = SweepStorage(storage_url("journal", runs / "sweeps" / "small"))
    prepare(storage, definition)
    scripted = sweeps.ScriptedRuns(
        lambda config: max(0.0, 0.8 - 2.0 * abs(config.divergence.delta - 0.02) + 0.01 * (config.seed % 3))
    )
    sweeps.new_worker(storage, definition, scripted).work()


def write_outcomes(path: Path) -> None:
    """A table of two methods, of which the first is right more often."""
    draw = random.Random(0)
    lines = ["run,method,seed,problem,sample,correct"]
    for method, rate in (("atr", 0.7), ("clip", 0.5)):
        for seed in range(500, 505):
            for problem in range(10):
                for sample in range(64):
                    is_right = int(draw.random() < rate)
                    lines.append(f"{method}-{seed},{method},{seed},{problem},{sample},{is_right}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# Files


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location("shared_by_objective_tests", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_text_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


RECORDERS = {"objectives": compute_objectives, "words": write_words, "studies": write_studies}
PARTS = {
    "objectives": (record_objectives, compare_objectives),
    "training": (record_training, compare_training),
    "words": (record_words, compare_words),
    "studies": (record_studies, lambda out: compare_texts(out, "studies")),
}
DIGESTS = {
    "objectives": digests_of_objectives,
    "training": digests_of_training,
    "words": lambda out: digests_of_texts(out / "words"),
    "studies": lambda out: digests_of_texts(out / "studies"),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        RECORDERS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(main())
