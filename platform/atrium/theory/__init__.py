"""Numerical checks of published theorems about objectives, on a policy small enough to enumerate."""
