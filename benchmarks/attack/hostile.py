"""Data, chat templates and files of settings that somebody made to hurt, given to commands that read them.

Each has to be taken for what it is, or refused in one line; none may be waited for, executed, or take the
machine's memory.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.attack.commands import said_by
from benchmarks.attack.kills import TRAIN
from benchmarks.attack.outcomes import Attempt, Outcome

from atrium.runs.find import list_runs
from atrium.runs.layout import remove

Make = Callable[[Path], object]
NUM_ROWS = 8


def _rows(**odd: object) -> Make:
    """A JSONL file of sums, one row of which has other values."""
    rows: list[dict[str, object]] = [
        {"problem": f"{n}+{n}=", "answer": str(2 * n), "output": f"\\boxed{{{2 * n}}}"}
        for n in range(NUM_ROWS)
    ]
    rows[3] |= odd | {"output": odd.get("answer", "")}
    return _text("".join(json.dumps(row) + "\n" for row in rows))


def _text(text: str) -> Make:
    return lambda path: path.write_text(text, encoding="utf-8", errors="surrogatepass")


def _table(column: pa.Array) -> Make:
    return lambda path: pq.write_table(pa.table({"problem": column, "answer": column}), path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _bomb(open_: str, close: str) -> str:
    """YAML of 10 ** 9 values in a few lines."""
    lines = [f"a0: &a0 {open_}x{close}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines)


ODD: dict[str, Make] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
    "an endless file": _sparse,
    "empty": _text(""),
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(4096)),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
}
DATA: dict[str, Make] = {f"{what} called data{suffix}": make for what, make in ODD.items() for suffix in
                         (".jsonl", ".json", ".csv", ".parquet")} | {
    "a list in lists called data.jsonl": _text("[" * 100_000 + "]" * 100_000),
    "an object in objects called data.json": _text('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a huge number called data.jsonl": _text('{"problem": "1+1=", "answer": ' + "9" * 100_000 + "}\n"),
    "a number without end called data.jsonl": _text('{"problem": "1+1=", "answer": 1e999}\n' * 9),
    "an answer that never ends called data.jsonl": _rows(answer="9**9**9**9**9"),
    "an answer in brackets called data.jsonl": _rows(answer="(" * 50_000),
    "an answer in fractions called data.jsonl": _rows(answer="\\frac{" * 50_000),
    "no question called data.jsonl": _rows(problem=None),
    "a question that is a number called data.jsonl": _rows(problem=7),
    "a long question called data.jsonl": _rows(problem="1+" * 50_000 + "1="),
    "half a character called data.jsonl": _rows(problem="\ud800", answer="\udfff"),
    "a terminal's codes called data.jsonl": _rows(problem="\x1b[2J\x07\u202e1+1=", answer="\x1b[31m2"),
    "marks of a template called data.jsonl": _rows(problem="{question}<|im_end|>{{ 7*7 }}${seed}"),
    "one problem many times called data.jsonl": _text('{"problem": "1+1=", "answer": "2"}\n' * 50),
    "an open quote called data.csv": _text('problem,answer\n"1+1=,2\n' + "x" * 200_000),
    "columns without names called data.csv": _text(",,,\n1,2,3,4\n"),
    "numbers called data.parquet": _table(pa.array(range(NUM_ROWS))),
    "lists called data.parquet": _table(pa.array([[[1]]] * NUM_ROWS)),
    "bytes called data.parquet": _table(pa.array([b"\xff\xfe"] * NUM_ROWS)),
    "nothing but null called data.parquet": _table(pa.nulls(NUM_ROWS)),
}  # fmt: skip
READERS_OF_DATA = (
    (*TRAIN, "num_steps=1", "dataset=file", "dataset.source={file}", "dataset.num_validation=2",
     "dataset.num_test=1", "dataset.num_train=null", "rollout.num_prompts=2", "benchmark=held_out",
     "runs_dir={runs}"),
    ("evaluate", "--run", "{run}", "benchmark=file", "benchmark.source={file}", "runs_dir={runs}"),
    ("evaluate", "--regrade", "{file}"),
    ("claim", "check", "atr/abstract_performance", "{file}"),
    (*TRAIN, "rollout=bank", "rollout.source={file}", "runs_dir={runs}"),
)  # fmt: skip
TEMPLATES: dict[str, Make] = {
    "that never ends": _text(
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    ),
    "of much memory": _text("{{ 'a' * 100000000000 }}"),
    "of a range too large": _text("{% for i in range(1000000000000) %}x{% endfor %}"),
    "of a power": _text("{{ 10 ** 10000000000 }}"),
    "that calls itself": _text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    "in brackets": _text("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}"),
    "of a gigabyte": lambda path: path.write_bytes(b"a" * (1 << 28)),
    "that reads a file": _text("{% include '/etc/passwd' %}"),
    "that looks for classes": _text("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "that fails": _text("{{ 1 / 0 }}"),
    "that is wrong": _text("{% for %}"),
    "that says nothing": _text(" "),
    "that is no text": lambda path: path.write_bytes(b"\xff\xfe{{ x }}"),
    "that is a pipe": os.mkfifo,
    "that is a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
}
READER_OF_TEMPLATES = (
    "evaluate", "model=hub", "model.source={file}", "dataset.num_test=2", "evaluation.num_samples=1",
    "evaluation.max_new_tokens=8", "tracking.figures=false", "runs_dir={runs}",
)  # fmt: skip
SETTINGS: dict[str, Make] = {f"{what} called settings.yaml": make for what, make in ODD.items()} | {
    "aliases of lists": _text(_bomb("[", "]")),
    "aliases of mappings": _text(_bomb("{k: ", "}")),
    "an alias of itself": _text("a: &a [*a]\n"),
    "lists in lists": _text("a: " + "[" * 50_000 + "]" * 50_000),
    "a class": _text("a: !!python/object/apply:os.system [true]\n"),
    "two documents": _text("a: 1\n---\nb: 2\n"),
    "a key of a key": _text("{? {a: 1} : 2}\n"),
    "a date": _text("2020-01-01: 2020-01-01\n"),
}
READERS_OF_SETTINGS = (
    (*TRAIN, "algorithm={file}", "runs_dir={runs}"),
    (*TRAIN, "experiment={file}", "runs_dir={runs}"),
    ("evaluate", "--run", "{run}", "benchmark={file}", "runs_dir={runs}"),
    ("sweep", "{file}", "runs_dir={runs}"),
    ("claim", "check", "{file}", "runs"),
)


def attempts(num: int, seed: int, place: Path) -> Iterator[Attempt]:
    """So many hostile files, each given to one command that reads such files."""
    if not num:
        return
    whole = place / "whole" / "runs"
    said_by((*TRAIN, f"runs_dir={whole}"))
    (run,) = list_runs(whole)
    cases = [
        *(("hostile data", *case) for case in itertools.product(DATA, READERS_OF_DATA)),
        *(("hostile chat templates", name, READER_OF_TEMPLATES) for name in TEMPLATES),
        *(("hostile settings", *case) for case in itertools.product(SETTINGS, READERS_OF_SETTINGS)),
    ]
    random.Random(seed).shuffle(cases)
    for number, (kind, name, words) in enumerate(itertools.islice(itertools.cycle(cases), num)):
        folder = place / f"hostile-{number}"
        folder.mkdir()
        if kind == "hostile chat templates":
            file = folder / "model"
            shutil.copytree(run.checkpoint_path(4) / "policy", file)
            (file / "chat_template.jinja").unlink()
            TEMPLATES[name](file / "chat_template.jinja")
        elif kind == "hostile data":
            file = folder / name.rpartition(" called ")[2]
            DATA[name](file)
        else:
            file = folder / "settings.yaml"
            SETTINGS[name](file)
        given = {"file": file, "run": run.path, "runs": folder / "runs"}
        outcome, said = said_by(tuple(word.format(**given) for word in words))
        told = " ".join(words[:3]) if outcome is Outcome.FELL else words[0]
        yield Attempt(kind, f"{name}: {told}", outcome, said)
        remove(folder)
