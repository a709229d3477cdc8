"""The choice between packed and padded rows if `compute.packing` is `auto`.

The choice is stored in the run's config.json, which a resumed or repeated run reuses. It is also cached in
the runs directory, so that all runs of a sweep or comparison make the same choice.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
import transformers

import atrium
from atrium.assemble.run import Run
from atrium.base.atomic import write_text
from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.config.own_files import override_text
from atrium.train.update.forward import PolicyForward
from atrium.train.update.forward_check import PackingFinding, check_model, find_packing

_CACHE = "packing.json"


def settle_packing(run: Run, forward: PolicyForward, *, longest_prompt: int, longest: int) -> Run:
    """Check the model's outputs, choose and record `compute.packing`, and return the changed run.

    `longest_prompt` and `longest` are the lengths of the longest prompt and row in tokens. Raises
    `ConfigError` if the model cannot be trained at all, or if it cannot be trained on packed rows although
    the settings or the choice of an earlier run require packing.
    """
    config, ranks = run.config, run.ranks
    check_model(forward, longest)
    if (wanted := config.compute.packing) is False:
        return run
    path, key = run.folder.cache_dir / _CACHE, _key(forward)
    earlier = ranks.from_first(_read(path).get(key)) if wanted == "auto" else None
    finding = PackingFinding(earlier) if earlier else find_packing(forward, longest)
    if finding.fault and (wanted is True or earlier == ""):
        raise ConfigError(
            f"compute.packing={override_text(wanted)} cannot be used, since {finding.fault}"
            + ("; an earlier run of this model packed its rows" if earlier == "" else "")
            + "; use compute.packing=false"
        )
    if wanted is True:
        return run
    if finding.fault and config.compute.compile is True:
        raise ConfigError(
            f"compute.compile=true requires packed updates, but {finding.fault}; use compute.compile=false"
        )
    run.log(_words(finding, config.rollout.group_size, longest_prompt, longest))
    if ranks.is_first:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**_read(path), key: finding.fault or ""}, indent=1) + "\n")
    return run.with_compute(packing=finding.fault is None)


def _words(finding: PackingFinding, group_size: int, longest_prompt: int, longest: int) -> str:
    if finding.fault is None:
        return (
            "updates compute packed rows (compute.packing=auto): the model's layers are plain causal "
            f"attention, and {finding.evidence}; there is no padding, and each prompt is computed once"
        )
    ratio = group_size * longest / (longest_prompt + group_size * (longest - longest_prompt))
    return (
        f"updates compute padded rows (compute.packing=auto): {finding.fault}; cost: each prompt is "
        f"computed {group_size} times instead of once, which is up to {ratio:.2g} times as many tokens, "
        "and short answers are padded (optimizer/padding_frac shows by how much)"
    )


def _key(forward: PolicyForward) -> str:
    """Return the cache key of the choice: a hash of everything that affects it."""
    facts = [
        forward.text_config.to_dict(),
        str(forward.dtype),
        forward.device.type,
        forward.is_sharded,
        torch.__version__,
        transformers.__version__,
        atrium.__version__,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, str]:
    cache, _ = read_object(path)
    return {key: value for key, value in cache.items() if isinstance(value, str)}
