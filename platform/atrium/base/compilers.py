"""Checks for the compilers and headers that torch and Triton need to build kernels."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

_COMPILERS = {"cpu": ("c++", "g++", "clang++"), "cuda": ("gcc", "clang", "cc")}


def compiler(device_type: str) -> str | None:
    """Return the path of the C++ compiler (`cpu`) or C compiler (`cuda`) on the PATH, or None."""
    return next((path for name in _COMPILERS[device_type] if (path := shutil.which(name))), None)


def missing_compilers(device_type: str) -> list[str]:
    """Return the missing compiler and headers without which no kernel can be built for `cpu` or `cuda`.

    The list is empty if nothing is missing; the headers of Python are needed for `cuda` only.
    """
    language = {"cpu": "C++", "cuda": "C"}[device_type]
    missing = [] if compiler(device_type) else [f"a {language} compiler ({_COMPILERS[device_type][0]})"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if device_type == "cuda" and not headers.is_file():
        missing.append(f"{headers} (on Debian: apt-get install python3-dev)")
    return missing
