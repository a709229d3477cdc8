"""Atrium: declarative experiments in reinforcement learning with verifiable rewards.

Importing this package imports nothing else; each layer is imported where it is used, so that the
command line starts quickly and configuration is checked before torch is loaded. `load_method` is the
interface of the objective for other programs: docs/trainers.md.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atrium.peers.interface import load_method as load_method

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`load_method`, imported with torch when it is first asked for."""
    if name == "load_method":
        from atrium.peers.interface import load_method

        return load_method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
