"""Numerical checks of published theorems about objectives, on policies small enough to enumerate."""
