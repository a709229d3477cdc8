"""Statistics on arrays, with numpy and scipy only: estimates, intervals, verdicts, power.

This package reads no runs.

Other programs call the function `atrium.stats.compare` (docs/statistics_library.md). The function is imported
on first access, so importing another module of this package does not load it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atrium.stats.library import compare as compare


def __getattr__(name: str) -> object:
    """Import `compare` on first access."""
    if name == "compare":
        from atrium.stats.library import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
