"""The Parquet files of sampled text: rollouts of training, and samples of evaluations.

There is one row per completion. Per-token columns are lists of equal length. The columns `advantage`,
`ratio`, `entropy` and `clipped` are null for rollouts that no update used. Text is stored as sampled and must
be displayed as plain text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from atrium.base.atomic import replacing
from atrium.base.errors import RunFolderError, reason_of
from atrium.base.plain_files import open_plain
from atrium.base.records import EvaluatedSample, FinishReason, Problem, RolloutGroup, TokenTrace, VerdictKind
from atrium.base.texts import encodable
from atrium.runs.layout import RunLayout, step_of

Row = dict[str, Any]

_BATCH_ROWS = 1024
_FLOATS = pa.list_(pa.float32())
_PROBLEM_FIELDS = [
    ("step", pa.int64()),
    ("problem_id", pa.string()),
    ("question", pa.string()),
    ("gold", pa.string()),
    ("metadata", pa.string()),  # the problem's metadata as a JSON object
    ("turns", pa.string()),  # the turns before the question, JSON of pairs of role and text; null for none
    ("verifier", pa.string()),  # the values for the verifier as a JSON object; null for none
    ("sample_index", pa.int32()),
    ("text", pa.string()),
    ("verdict", pa.string()),
    ("reason", pa.string()),
    ("extracted", pa.string()),
]
PART_COLUMN = "reward/"
"""Prefix of the columns of named rewards, if there are several; a value is null if the reward abstained."""
ROLLOUT_SCHEMA = pa.schema(
    [
        *_PROBLEM_FIELDS,
        ("reward", pa.float64()),
        ("finish_reason", pa.string()),
        ("num_tokens", pa.int32()),
        ("weight_version", pa.int64()),
        # Version, first token and end of each part; null if one set of weights sampled all tokens.
        ("spans", pa.list_(pa.list_(pa.int64()))),
        ("token_ids", pa.list_(pa.int32())),
        ("own", pa.list_(pa.bool_())),  # null if the policy sampled all tokens
        ("logprobs", _FLOATS),
        ("advantage", _FLOATS),
        ("ratio", _FLOATS),
        ("entropy", _FLOATS),
        ("clipped", pa.list_(pa.int8())),
    ]
)
EVALUATION_SCHEMA = pa.schema(
    [
        *_PROBLEM_FIELDS,
        ("is_correct", pa.bool_()),
        ("finish_reason", pa.string()),
        ("num_tokens", pa.int32()),
        ("logprob_sum", pa.float64()),
    ]
)


def write_rollouts(
    path: Path, step: int, groups: Sequence[RolloutGroup], traces: Sequence[TokenTrace]
) -> None:
    """Write a step's rollouts to one Parquet file.

    `traces` contains one trace per rollout, in the order of the groups, or is empty. Raises `OSError` if the
    file cannot be written.
    """
    rows = []
    names = sorted({name for group in groups for rollout in group.rollouts for name in rollout.parts})
    rollouts = [(group.problem, rollout) for group in groups for rollout in group.rollouts]
    # By order, not by problem, since a step at the end of an epoch may contain a problem twice.
    each: Sequence[TokenTrace | None] = traces or [None] * len(rollouts)
    for (problem, rollout), trace in zip(rollouts, each, strict=True):
        completion, verdict = rollout.completion, rollout.verdict
        rows.append(
            {
                **_problem_columns(step, problem),
                "sample_index": rollout.sample_index,
                "text": encodable(completion.text),
                "verdict": verdict.kind.value,
                "reason": encodable(verdict.reason),
                "extracted": encodable(verdict.extracted),
                "reward": rollout.reward,
                **{f"{PART_COLUMN}{name}": rollout.parts[name][0] for name in names},
                "finish_reason": completion.finish_reason.value,
                "num_tokens": completion.num_tokens,
                "weight_version": completion.weight_version,
                "spans": [list(span) for span in completion.spans] or None,
                "token_ids": completion.token_ids,
                "own": completion.own,
                "logprobs": completion.logprobs,
                "advantage": trace.advantage if trace else None,
                "ratio": trace.ratio if trace else None,
                "entropy": trace.entropy if trace else None,
                "clipped": trace.clipped if trace else None,
            }
        )
    parts = [pa.field(f"{PART_COLUMN}{name}", pa.float64()) for name in names]
    _write(path, rows, pa.schema([*ROLLOUT_SCHEMA, *parts]))


def write_evaluation(path: Path, step: int, samples: Iterable[EvaluatedSample]) -> None:
    """Write an evaluation's samples to one Parquet file; raises `OSError` if it cannot be written."""
    rows = [{**_problem_columns(step, one.problem), **answer_columns(one)} for one in samples]
    _write(path, rows, EVALUATION_SCHEMA)


def write_evaluation_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows of `EVALUATION_SCHEMA` to one Parquet file, in batches; missing columns are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = iter(rows)
    with (
        replacing(path) as temporary,
        pq.ParquetWriter(temporary, EVALUATION_SCHEMA, compression="zstd") as writer,
    ):
        while batch := list(islice(rows, _BATCH_ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema=EVALUATION_SCHEMA))


def answer_columns(sample: EvaluatedSample) -> Row:
    """Convert a sample to a row without the columns of its problem. The inverse is `sample_of`."""
    values = {field.name: getattr(sample, field.name) for field in fields(sample) if field.name != "problem"}
    return {name: encodable(value) if isinstance(value, str) else value for name, value in values.items()}


def sample_of(row: Row, problem: Problem) -> EvaluatedSample:
    """Convert a row with the columns of `answer_columns` to a sample of `problem`."""
    values = {field.name: row[field.name] for field in fields(EvaluatedSample) if field.name != "problem"}
    kinds = {"verdict": VerdictKind(row["verdict"]), "finish_reason": FinishReason(row["finish_reason"])}
    return EvaluatedSample(problem=problem, **{**values, **kinds})


def read_samples(path: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """Read the rows of a Parquet file, with all columns or those of `columns` that exist.

    Raises `RunFolderError` if the file is missing or damaged.
    """
    try:
        with open_plain(path) as plain, pq.ParquetFile(plain) as file:
            present = file.schema_arrow.names
            wanted = None if columns is None else [name for name in columns if name in present]
            rows: list[Row] = file.read(columns=wanted, use_threads=False).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(
            f"{path} is missing or damaged: {reason_of(error)}; restore it, or evaluate again"
        ) from error
    return rows


def read_evaluated(
    folder: RunLayout, *, benchmark: str | None = None, step: int | None = None
) -> dict[str, list[Row]]:
    """Read the samples of each benchmark's latest evaluation; return their rows by benchmark.

    `benchmark` and `step` restrict the search; None means any. Raises `RunFolderError` if there are no
    matching samples, or if a file is damaged.
    """
    stored: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in sorted(folder.evaluations_dir.glob("*/*.parquet")):
        found = step_of(path.stem)
        if found is not None and benchmark in (None, path.parent.name) and step in (None, found):
            stored[path.parent.name][found] = path
    if not stored:
        named = (("of", benchmark), ("at step", step))
        asked = "".join(f" {key} {value}" for key, value in named if value is not None)
        raise RunFolderError(f"{folder.path} has no samples of an evaluation{asked}; choose another run")
    return {name: read_samples(paths[max(paths)]) for name, paths in stored.items()}


def _problem_columns(step: int, problem: Problem) -> Row:
    return {
        "step": step,
        "problem_id": encodable(problem.problem_id),
        "question": encodable(problem.question),
        "gold": encodable(problem.answer),
        "metadata": json.dumps(dict(problem.metadata)),
        "turns": json.dumps(problem.turns) if problem.turns else None,
        "verifier": json.dumps(dict(problem.verifier)) if problem.verifier else None,
    }


def _write(path: Path, rows: Sequence[Row], schema: Any) -> None:  # noqa: ANN401 - untyped library
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
