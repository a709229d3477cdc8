"""Cache keys of the evaluation before training: hashes of everything that affects its samples.

Every setting of the model, engine, sampling and grader is part of the key, except those that this module
excludes because they cannot change an answer or a grade, or because their effect is hashed separately. A new
setting is therefore part of the key by default. The settings of `compute` are an exception: only those that
this module names are part of the key.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import atrium
from atrium.assemble.graders import grader_version
from atrium.base import plugins
from atrium.base.loading import installed_version
from atrium.config.evaluation import ONLY_TRAINING_READS
from atrium.config.schema import RunConfig
from atrium.data.prompts import PromptEncoder
from atrium.engines.declaration import PLACE_SETTINGS, EngineSettings
from atrium.engines.settings import BankSettings, DecoderSettings
from atrium.grading.verifiers import Verifier
from atrium.models.digests import architecture, tokenizer_digest
from atrium.models.policy import Policy
from atrium.models.settings import TinySettings

if TYPE_CHECKING:
    from atrium.evaluation.evaluator import Benchmark

_FORMAT_VERSION = 2

# These settings only determine weights, tokenizer and prompts, whose contents are hashed separately.
_HASHED_THEMSELVES = {
    *TinySettings.model_fields,
    *("kind", "source", "revision", "weights", "architecture", "seed", "warmup", "lora", "prompt"),
}
_OF_WAITING = {"sleep_level", "start_timeout_s", "step_timeout_s"}
_OF_BANK = BankSettings.model_fields.keys() - DecoderSettings.model_fields.keys()
_READ_OF_COMPUTE = {"device", "dtype", "head_dtype", "residual_dtype"}
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
_CODE = ("grading", "models", "engines", "evaluation")


def policy_key(config: RunConfig, policy: Policy, weights: str) -> str:
    """Return a hash of everything that affects samples except the benchmark: policy, engine, and software.

    `weights` is the `weights_digest` of the policy.
    """
    rollout = config.rollout.model_dump(mode="json")
    not_read = {*ONLY_TRAINING_READS, *PLACE_SETTINGS, *_OF_WAITING, *_OF_BANK, "max_new_tokens"}
    content = {
        "version": _FORMAT_VERSION,
        "model": config.model.model_dump(mode="json", exclude=_HASHED_THEMSELVES),
        "architecture": architecture(policy),
        "weights": weights,
        "tokenizer": tokenizer_digest(policy.tokenizer),
        "ends": [policy.stop_token_ids, policy.pad_token_id, policy.context_length],
        "engine": {name: value for name, value in rollout.items() if name not in not_read},
        "compute": config.compute.model_dump(mode="json", include=_READ_OF_COMPUTE),
        "software": [*_versions(config.rollout), _code_digest()],
        "plugins": [plugin.sha256 for plugin in plugins.loaded()],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def evaluation_key(
    policy: str, benchmark: Benchmark, verifier: Verifier, encode: PromptEncoder, seed: int
) -> str:
    """Return the cache key (20 hex digits) of an evaluation on one benchmark.

    `policy` is the `policy_key`, and `seed` the random seed of sampling.
    """
    problems = [
        [one.problem_id, one.question, one.answer, dict(one.judged_by), encode(one).tolist()]
        for one in benchmark.problems
    ]
    content = {
        "policy": policy,
        "seed": seed,
        "benchmark": benchmark.name,
        "num_samples": benchmark.num_samples,
        "require_stop": benchmark.require_stop,
        "sampling": benchmark.sampling.model_dump(mode="json"),
        "grader": [grader_version(verifier), verifier.model_dump(mode="json", exclude={"num_workers"})],
        "problems": problems,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _versions(engine: EngineSettings) -> list[str]:
    """Return the versions of the installed libraries that sample and decode answers."""
    versions = {name: installed_version(name) for name in (*_PACKAGES, *engine.packages)}
    return [f"{name} {version}" for name, version in versions.items() if version is not None]


@cache
def _code_digest() -> str:
    """Return a hash of Atrium's code for sampling, decoding and grading.

    The version does not identify this code, because the files of a checkout may have been edited.
    """
    root = Path(atrium.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for package in _CODE for file in (root / package).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
