"""What other trainers made of fixed tensors, in files with their versions, each with its digest beside it."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "vectors"


def write(trainer, packages, tensors, gradients):
    """Record gradients by method, and the tensors that they were made of."""
    content = {
        "recorded_by": f"record_{trainer}.py",
        "versions": {name: version(name) for name in packages},
        "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
        "gradients": {method: gradient.tolist() for method, gradient in gradients.items()},
    }
    FOLDER.mkdir(exist_ok=True)
    path, text = FOLDER / f"{trainer}.json", json.dumps(content, indent=1) + "\n"
    path.write_text(text)
    path.with_suffix(".sha256").write_text(f"{_digest(path)}  {path.name}\n")


def read(trainer):
    """What was recorded, as it was recorded."""
    path = FOLDER / f"{trainer}.json"
    assert path.with_suffix(".sha256").read_text().split()[0] == _digest(path)
    return json.loads(path.read_text())


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
