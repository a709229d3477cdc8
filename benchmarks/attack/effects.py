"""No silent no-op: a setting of a method or an optimiser that is accepted shows in two tiny steps.

Every number and switch of several methods is changed by itself. A changed run has to differ from the
unchanged one in a recorded number or a weight, unless the setting is on the list of what cannot show itself
so. Methods whose filter wants correct answers are left out: so small a model gives none, and they train on
nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from benchmarks.attack.outcomes import Attempt, Outcome

from atrium.assemble.training import run_training
from atrium.base.errors import AtriumError, ConfigError
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.base.nested import flattened
from atrium.config.compose import compose
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.runs.run_folder import RunFolder

METHODS = (
    "atr", "clip_higher", "gspo", "cispo", "dual_clip", "gmpo", "sapo", "topr", "bapo", "vespo", "kl_cov",
    "clip_cov", "grpo_kl_corrected", "rpg_ufkl", "rpg_reinforce_urkl", "gvpo", "dppo_binary_tv",
    "reinforce_plus_plus", "dsv32_mask", "spo", "dro", "asymre", "decoupled",
)  # fmt: skip
SECTIONS = ("algorithm", "divergence", "regularizer", "optimizer")
SMALL = (
    "debug=tiny_steps",
    "num_steps=2",
    "reward=random",
    "rollout.max_new_tokens=16",
    "optimizer.learning_rate=0.02",
    "optimizer.num_epochs=2",
    "evaluation.every_num_steps=null",
    "checkpoint.keep_best=false",
    "dataset.num_validation=4",
    "dataset.num_test=4",
    "tracking=none",
    "tracking.figures=false",
    "tracking.progress=off",
    "tracking.rollouts_every_num_steps=null",
)
CANNOT_SHOW = {
    "optimizer.max_skipped_updates": "no update is skipped",
    "algorithm.log_ratio_limit": "no ratio of two steps is as far as exp(10) from 1",
    "algorithm.ratio.weight.cap": "no ratio of two steps meets it",
    "algorithm.surrogate.cap": "no ratio of two steps meets it",
    "algorithm.advantage.per_reward": "these runs have one reward",
    "algorithm.on_policy.scale": "what a method says of itself, to which tests hold it",
    "algorithm.token_weight.frac": "a share of some hundred tokens that rounds to none",
    "algorithm.token_weight.upper": "it bounds what a share that rounds to none is drawn from",
    "divergence.step": "the first window of the search has the share that it looks for already",
    "divergence.positive_frac": "the first window of the search has this share already",
}
"""Settings that two healthy steps cannot show, and why."""
Case = tuple[str, str, str]


def cases(seed: int) -> Iterator[Case]:
    """All methods' settings with another value, as (method, setting, value), in an order drawn by a seed."""
    found = [
        (method, key, changed)
        for method in METHODS
        for key, value in flattened(compose([*SMALL, f"algorithm={method}"]).as_record()).items()
        if key.partition(".")[0] in SECTIONS and key not in CANNOT_SHOW
        if (changed := _changed(value)) is not None
    ]
    random.Random(seed).shuffle(found)
    return iter(found)


def attempts(num: int, seed: int, place: Path) -> Iterator[Attempt]:
    """Try so many of the cases."""
    runs = _Runs(place)
    with GraderPool(MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=1024)) as grader:
        for method, key, value in itertools.islice(cases(seed), num):
            tried = f"algorithm={method} {key}={value}"
            try:
                changed = runs.digest(grader, f"algorithm={method}", f"{key}={value}")
            except ConfigError as refused:
                yield Attempt("settings without effect", tried, Outcome.REFUSED, str(refused))
                continue
            except AtriumError as ended:  # a run that such a setting makes diverge is an effect
                yield Attempt("settings without effect", tried, Outcome.HELD, str(ended))
                continue
            is_same = changed == runs.digest(grader, f"algorithm={method}")
            outcome = Outcome.FELL if is_same else Outcome.HELD
            yield Attempt("settings without effect", tried, outcome, "nothing changed" if is_same else "")


class _Runs:
    """Trains below one folder, each configuration once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.digest = cache(self._digest)

    def _digest(self, grader: GraderPool, *settings: str) -> str:
        """A hash of the metrics and the last weights of a run."""
        lines: Sequence[str] = (*SMALL, f"runs_dir={self._place}", *settings)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run = RunFolder(run_training(compose(lines), grader, lines))
        metrics = [
            {name: value for name, value in record.items() if is_repeatable(name) and name != "time"}
            for record in read_json_lines(run.metrics_file).records
        ]
        digest = hashlib.sha256(json.dumps(metrics, sort_keys=True).encode())
        digest.update((run.checkpoint_path(2) / "policy" / "model.safetensors").read_bytes())
        return digest.hexdigest()


def _changed(value: object) -> str | None:
    """Another value of the same kind; None for what is no number and no switch."""
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int):
        return str(2 * value if value else 1)
    if isinstance(value, float):
        return repr(0.5 * value if value else 0.37)
    return None
