"""Digests of a loaded policy, computed from the data in memory rather than from files that may change."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from atrium.models.policy import Policy
from atrium.models.shards import full_tensor
from atrium.models.sources import quiet

# Keys for where and how a model was loaded, which do not change the model.
_OF_LOADING = ("_name_or_path", "name_or_path", "is_local", "local_files_only", "transformers_version")


def source_digests(policy: Policy, weights: str) -> dict[str, str]:
    """Return the identity of a policy's source: its commit on the Hub, or digests of the policy's parts.

    The parts are weights, tokenizer, architecture, chat template and generation config. `weights` is the
    `weights_digest` of the policy, with adapters merged into the weights.
    """
    # The commit that a branch of the Hub pointed to; transformers keeps it in a private attribute.
    if commit := getattr(policy.model.config, "_commit_hash", None):
        return {"commit": str(commit)}
    generation = policy.model.generation_config
    parts = {
        "architecture": architecture(policy),
        "chat template": policy.tokenizer.chat_template,
        "generation config": None if generation is None else _plain(generation.to_dict()),
    }
    digests = {name: _digest(part) for name, part in parts.items()}
    return {"weights": weights, "tokenizer": tokenizer_digest(policy.tokenizer), **digests}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of all tensors and their names, dtypes and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(full_tensor(tensor).detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def architecture(policy: Policy) -> dict[str, Any]:
    """Return the model's configuration, without the keys that depend on where and how it was loaded."""
    return _plain(policy.model.config.to_dict())


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _OF_LOADING}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 (hex) of the tokenizer's saved files, except for the chat template."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as name, quiet():
        tokenizer.save_pretrained(name)
        for file in sorted(Path(name).rglob("*")):
            if file.is_dir() or "chat_template" in file.name:
                continue
            content = file.read_bytes()
            if file.name == "tokenizer_config.json":
                settings = json.loads(content)
                kept = {key: value for key, value in settings.items() if key not in _OF_LOADING}
                content = json.dumps(kept, sort_keys=True).encode()
            digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
