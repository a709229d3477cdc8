"""The warm-up: supervised training of the built-in policy before reinforcement learning.

The first phase builds competence from clean demonstrations; the second phase imitates a demonstrator that
makes mistakes. The result is cached under a hash of everything it depends on. The warm-up always uses one CPU
thread and float32, so that the checkpoint does not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch
import transformers
from safetensors import SafetensorError

from atrium.base.errors import (
    AtriumError,
    CheckpointError,
    ConfigError,
    TrainingDivergedError,
    reason_of,
    remedy_of,
)
from atrium.base.plain_files import MAX_LINES_BYTES, read_plain
from atrium.base.seeding import derive_seed
from atrium.data.settings import ArithmeticSettings
from atrium.models.demonstrations import (
    PackedBatch,
    clean_demonstrator,
    demonstration_batches,
    imperfect_demonstrator,
    longest_demonstration,
)
from atrium.models.policy import Policy, load_policy, write_policy
from atrium.models.settings import TOKENS, TinySettings, WarmupSettings
from atrium.models.tiny import CHAT_TEMPLATE, build_tiny_policy

RECIPE_VERSION = 1
"""Version of the warm-up's code; increase it when a code change changes the checkpoint for equal settings."""

ProgressCallback = Callable[[int, int, float], None]
"""Called with the number of finished steps, the number of all steps, and the last loss in nats per token."""

_BETAS = (0.9, 0.98)
_WEIGHT_DECAY = 0.01
_MAX_GRAD_NORM = 1.0
_NUM_RAMP_STEPS = 50
_FINAL_RATE_FRAC = 0.1
_MANIFEST = "warmup.json"


def warmed_up_policy(
    tiny: TinySettings,
    warmup: WarmupSettings,
    arithmetic: ArithmeticSettings,
    *,
    seed: int,
    cache_dir: Path,
    on_progress: ProgressCallback | None = None,
    device: torch.device | str = "cpu",
    lock_timeout_s: float = 900.0,
) -> Policy:
    """Return the policy after its warm-up, from the cache `<cache_dir>/warmup/<hash>/` or newly trained.

    A cached checkpoint is used only if every file still has its recorded hash, and is trained again
    otherwise. If several processes need the same checkpoint, one trains it and the others wait. Raises
    `CheckpointError` if the wait exceeds `lock_timeout_s` or the cache cannot be written, `ConfigError` if a
    demonstration does not fit the context, and `TrainingDivergedError` if the loss is not finite.
    """
    folder = cache_dir / "warmup" / warmup_hash(tiny, warmup, arithmetic, seed)
    if not _is_intact(folder):
        with _locked(folder, lock_timeout_s):
            if not _is_intact(folder):
                policy = train_policy(tiny, warmup, arithmetic, seed=seed, on_progress=on_progress)
                _store(policy, folder, {"seed": seed, "warmup": warmup.model_dump()})
    return load_policy(folder, dtype=torch.float32, device=device)


def train_policy(
    tiny: TinySettings,
    warmup: WarmupSettings,
    arithmetic: ArithmeticSettings,
    *,
    seed: int,
    on_progress: ProgressCallback | None = None,
) -> Policy:
    """Run the warm-up itself, without the cache; equal arguments give equal weights.

    Raises `ConfigError` if a demonstration does not fit the context, and `TrainingDivergedError` if the loss
    is not finite.
    """
    longest = longest_demonstration(arithmetic.max_operands)
    if longest > tiny.context_length:
        raise ConfigError(
            f"model.context_length must be at least {longest}, the length of a worked solution with "
            f"{arithmetic.max_operands} operands, got {tiny.context_length}; raise it, or lower "
            "dataset.max_operands"
        )
    policy = build_tiny_policy(tiny, derive_seed(seed, "initial_weights"))
    imperfect = imperfect_demonstrator(
        random.Random(derive_seed(seed, "imperfections")),
        direct_frac=warmup.direct_frac,
        direct_error_frac=warmup.direct_error_frac,
        slip_frac=warmup.slip_frac,
    )
    batches = demonstration_batches(
        policy.tokenizer,
        arithmetic,
        [
            (warmup.num_clean_steps, clean_demonstrator),
            (warmup.num_imperfect_steps, imperfect),
        ],
        batch_size=warmup.batch_size,
        seed=seed,
    )
    with _one_thread():
        _fit(policy, batches, warmup, on_progress)
    return policy


def warmup_hash(tiny: TinySettings, warmup: WarmupSettings, arithmetic: ArithmeticSettings, seed: int) -> str:
    """Return a hash (20 hex digits) of all that determines the checkpoint, including library versions."""
    drawn = set(ArithmeticSettings.model_fields) - {"num_train"}  # the warm-up draws its own questions
    content = {
        "recipe_version": RECIPE_VERSION,
        "tiny": tiny.model_dump(include=set(TinySettings.model_fields)),
        "warmup": warmup.model_dump(),
        "arithmetic": arithmetic.model_dump(include=drawn),
        "seed": seed,
        "tokens": TOKENS,
        "chat_template": CHAT_TEMPLATE,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _fit(
    policy: Policy,
    batches: Iterator[PackedBatch],
    warmup: WarmupSettings,
    on_progress: ProgressCallback | None,
) -> None:
    model = policy.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=warmup.learning_rate,
        betas=_BETAS,
        weight_decay=_WEIGHT_DECAY,
        fused=True,
    )
    phases = (warmup.num_clean_steps, warmup.num_imperfect_steps)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = warmup.learning_rate * _rate_frac(step, phases)
        loss = _loss(policy, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingDivergedError(
                f"the warm-up's loss is {value} at step {step + 1}; lower model.warmup.learning_rate "
                f"(now {warmup.learning_rate})"
            )
        if on_progress is not None:
            on_progress(step + 1, warmup.num_steps, value)
    model.eval()


def _loss(policy: Policy, batch: PackedBatch) -> torch.Tensor:
    """Return the mean cross-entropy of the completion tokens; logits are computed for these tokens only."""
    hidden_BTH = policy.model.model(
        input_ids=batch.input_id_BT,
        attention_mask=batch.attention_bias_B1TT,
        position_ids=batch.position_id_BT,
        use_cache=False,
    ).last_hidden_state
    hidden_NH = hidden_BTH.flatten(0, 1).index_select(0, batch.position_N)
    return torch.nn.functional.cross_entropy(policy.model.lm_head(hidden_NH), batch.target_id_N)


def _rate_frac(step: int, phases: tuple[int, ...]) -> float:
    """Return the learning rate of a step, counted from 0, as a fraction of the peak rate.

    In each phase, the rate decays linearly to a tenth of its value at the start of the phase; the next phase
    continues from there. A phase of 0 steps reduces the rate to a tenth as well. At the beginning of the
    warm-up, the rate is also multiplied by a linear ramp. The low learning rate of the second phase changes
    which completions are likely but preserves competence.
    """
    ramp = min(1.0, (step + 1) / _NUM_RAMP_STEPS)
    start = 1.0
    for num_steps in phases:
        if step < num_steps:
            return ramp * start * (1.0 - (1.0 - _FINAL_RATE_FRAC) * step / num_steps)
        step -= num_steps
        start *= _FINAL_RATE_FRAC
    raise ValueError("step must be within the phases of the warm-up")


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _locked(folder: Path, timeout_s: float) -> AbstractContextManager[object]:
    """Acquire the lock of a cache folder; return a context manager that releases it.

    The operating system releases the lock if this process dies. Raises `CheckpointError` if the lock is not
    free within `timeout_s`, or cannot be created.
    """
    lock = filelock.FileLock(folder.with_suffix(".lock"), timeout=timeout_s)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return lock.acquire()
    except filelock.Timeout as error:
        raise CheckpointError(
            f"another process has held the warm-up's lock '{lock.lock_file}' for more than {timeout_s:g} "
            "s; wait for that process, or end it"
        ) from error
    except OSError as error:
        raise _unwritable(folder, error) from error


def _store(policy: Policy, folder: Path, settings: dict[str, Any]) -> None:
    """Write the checkpoint, then its manifest; an existing folder is deleted first.

    A folder without a manifest does not count as intact.
    """
    shutil.rmtree(folder, ignore_errors=True)  # damaged, or left by a writer that was killed
    try:
        folder.mkdir()
        write_policy(policy, folder)
        manifest = {"settings": settings, "files": _file_hashes(folder)}
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error


def _is_intact(folder: Path) -> bool:
    """Return whether the folder contains exactly the files in its manifest, with unchanged content."""
    try:
        manifest = json.loads(read_plain(folder / _MANIFEST))
        return bool(manifest["files"] == _file_hashes(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _file_hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(read_plain(path, MAX_LINES_BYTES)).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != _MANIFEST
    }


def _unwritable(folder: Path, error: Exception) -> AtriumError:
    return CheckpointError(
        f"cannot write the warm-up's cache in '{folder.parent}': {reason_of(error)}; {remedy_of(error)}, "
        "or set another runs_dir"
    )
