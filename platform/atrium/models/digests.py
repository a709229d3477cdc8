"""Digests of what a model is besides its weights in memory: its tokenizer, and the files of its source."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from atrium.models.sources import quiet

# Where a tokenizer was loaded from and how; none changes what it does.
_OF_LOADING = ("name_or_path", "is_local", "local_files_only", "transformers_version")


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 (hex) of how the tokenizer encodes and decodes; the chat template is not part of it."""
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
