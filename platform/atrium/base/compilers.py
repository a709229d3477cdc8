"""Checks for the compilers and headers that torch and Triton need to build kernels."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

_COMPILERS = {"cpu": ("c++", "g++", "clang++"), "cuda": ("gcc", "clang", "cc")}


def compiler(device_type: str) -> str | None:
    """Return the path of a compiler for kernels of `device_type`, or None if none is on the PATH.

    Kernels for `cpu` need a C++ compiler, and kernels for `cuda` need a C compiler.
    """
    return next((path for name in _COMPILERS[device_type] if (path := shutil.which(name))), None)


def missing_compilers(device_type: str) -> list[str]:
    """Return descriptions of what is missing to build kernels for `device_type`; empty if nothing is missing.

    Kernels for `cpu` need a C++ compiler. Kernels for `cuda` need a C compiler and Python's headers.
    """
    language = {"cpu": "C++", "cuda": "C"}[device_type]
    missing = [] if compiler(device_type) else [f"a {language} compiler ({_COMPILERS[device_type][0]})"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if device_type == "cuda" and not headers.is_file():
        missing.append(f"{headers} (on Debian: apt-get install python3-dev)")
    return missing
