"""Export of evaluation samples as CSV and for lm-eval and lighteval, to check a score independently.

Rows come from `sample_files.read_samples`; the rows of a problem must follow one another. lm-eval's samples
are JSON Lines with all answers to a problem in `resps`; lighteval's details are Parquet with `doc`,
`model_response` and `metric`. Rows contain no prompt, so both formats contain the question instead. The
evaluation's record names the prompt template.

Source: output files of lm-evaluation-harness 0.4 and lighteval 0.13. Field names inside lighteval's columns
have changed between its releases.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from atrium.base.atomic import replacing
from atrium.runs.sample_files import Row

_METRIC = "exact_match"
_CSV_FIELDS = (
    *("problem_id", "sample_index", "is_correct", "verdict", "reason", "gold", "extracted"),
    *("finish_reason", "num_tokens", "question", "text"),
)


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], fields: Sequence[str] = _CSV_FIELDS) -> None:
    """Write the given fields of each row as CSV, one line per sample, after a header."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_lm_eval(path: Path, task: str, rows: Sequence[Row]) -> None:
    """Write the rows as lm-eval's `samples_<task>_<date>.jsonl`, one line per problem."""
    lines = [json.dumps(_lm_eval(index, task, samples)) for index, samples in enumerate(_by_problem(rows))]
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_lighteval(path: Path, task: str, rows: Sequence[Row]) -> None:
    """Write the rows as lighteval's `details_<task>_<date>.parquet`, one row per problem."""
    details = [_lighteval(task, samples) for samples in _by_problem(rows)]
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(details), temporary)


def _by_problem(rows: Sequence[Row]) -> Iterable[list[Row]]:
    return (list(samples) for _, samples in groupby(rows, key=lambda row: row["problem_id"]))


def _lm_eval(index: int, task: str, samples: Sequence[Row]) -> dict[str, Any]:
    first = samples[0]
    doc = {"problem_id": first["problem_id"], "problem": first["question"], "answer": first["gold"]}
    return {
        "doc_id": index,
        "doc": doc,
        "target": first["gold"],
        "arguments": {"gen_args_0": {"arg_0": first["question"], "arg_1": {}}},
        "resps": [[sample["text"] for sample in samples]],
        "filtered_resps": [[sample["extracted"] or "" for sample in samples]],
        "filter": "none",
        "metrics": [_METRIC],
        "doc_hash": _hash(json.dumps(doc)),
        "prompt_hash": _hash(first["question"]),
        "target_hash": _hash(first["gold"]),
        _METRIC: sum(bool(sample["is_correct"]) for sample in samples) / len(samples),
        "task": task,
    }


def _lighteval(task: str, samples: Sequence[Row]) -> dict[str, Any]:
    first = samples[0]
    return {
        "doc": {
            "id": first["problem_id"],
            "task_name": task,
            "query": first["question"],
            "choices": [first["gold"]],
            "gold_index": [0],
        },
        "model_response": {
            "input": first["question"],
            "text": [sample["text"] for sample in samples],
            "extracted_predictions": [sample["extracted"] or "" for sample in samples],
            "output_lengths": [sample["num_tokens"] for sample in samples],
        },
        "metric": {f"avg@n:n={len(samples)}": sum(bool(one["is_correct"]) for one in samples) / len(samples)},
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
