"""The ranges that numbers of the configuration share, by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
"""A number of things of which at least one is needed."""
CountOrZero = Annotated[int, Field(ge=0)]
"""A number of things of which there may be none."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""The start of a sequence of random choices."""
Frac = Annotated[float, Field(ge=0.0, le=1.0)]
"""A share or a probability."""
Positive = Annotated[float, Field(gt=0.0)]
"""A quantity above 0."""
Wait = Annotated[float, Field(gt=0.0, le=3 * 86_400.0)]
"""Seconds that something is waited for, at most three days: systems count 2^31 milliseconds, 24.8 days."""
NonNegative = Annotated[float, Field(ge=0.0)]
"""A quantity of at least 0."""
Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""A name that can be a folder: letters, digits, dots, dashes and underscores."""
