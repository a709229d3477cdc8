"""Figures drawn with matplotlib: one module for each kind of figure, and a common style."""
