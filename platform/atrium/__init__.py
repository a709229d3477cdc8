"""Atrium: declarative experiments in reinforcement learning with verifiable rewards.

Importing this package imports nothing else; each layer is imported where it is used, so that the command line
starts quickly and configuration is checked before torch is loaded. Other programs call `load_method` to use
Atrium's objectives (see docs/trainers.md).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atrium.peers.interface import load_method as load_method

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return `load_method`, which is imported together with torch on first access.

    Raises `AttributeError` for any other name.
    """
    if name == "load_method":
        from atrium.peers.interface import load_method

        return load_method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
