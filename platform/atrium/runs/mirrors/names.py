"""Metric names in trackers: equal in all trackers, except for characters that a tracker does not accept.

MLflow accepts letters of any script, digits, spaces and `_ - . : /`, and only names that are plain relative
paths. Any other character is replaced by its hexadecimal code between colons: `mean@8` becomes `mean:40:8`.
So are the dots of a path component that consists only of dots. An empty component becomes `_`. W&B accepts
every name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from atrium.base.json_lines import Record
from atrium.base.metrics import evaluation_name
from atrium.base.nested import mapping_at
from atrium.base.recorded import as_finite

_REFUSED = re.compile(r"[^/\w.\- :]")
_MAX_LENGTH = 250


def mlflow_name(name: str) -> str:
    """Return a metric name that MLflow accepts, with at most 250 characters; valid names are unchanged."""
    escaped = _REFUSED.sub(lambda match: _code_of(match[0]), name)
    parts = escaped.split("/")
    plain = [part if part.strip(".") else "".join(map(_code_of, part)) or "_" for part in parts]
    return "/".join(plain)[:_MAX_LENGTH]


def evaluation_numbers(record: Record) -> dict[str, float]:
    """Return the scores in a record of `evaluations.jsonl`, by metric name.

    A name has the form `evaluation/<benchmark>/<score>`. The result is empty for a record that is not an
    evaluation.
    """
    benchmark, results = record.get("benchmark"), record.get("results")
    if not isinstance(benchmark, str) or not isinstance(results, Mapping):
        return {}
    k = results.get("k")
    mean = f"mean_at_{k}"
    found = {
        mean: results.get("mean_at_k"),
        **{f"pass_at_{k}": value for k, value in mapping_at(results, "pass_at").items()},
        "truncated_frac": results.get("truncated_frac"),
        "completion_length": results.get("completion_length"),
        f"maj_at_{k}": results.get("maj_at_k"),
        f"pass_hat_{k}": mapping_at(results, "pass_hat").get(str(k)),
        **{f"{kind}_frac": value for kind, value in mapping_at(results, "verdicts").items()},
    }
    for key, groups in mapping_at(results, "breakdown").items():
        for group, scores in groups.items() if isinstance(groups, Mapping) else ():
            if isinstance(scores, Mapping):
                found[f"{key}_{group}/{mean}"] = scores.get("mean_at_k")
    return {
        evaluation_name(benchmark, name): number
        for name, value in found.items()
        if (number := as_finite(value)) is not None
    }


def _code_of(character: str) -> str:
    return f":{ord(character):x}:"
