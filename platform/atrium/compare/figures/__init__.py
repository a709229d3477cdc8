"""Figures of runs, evaluations, sweeps and methods, drawn by matplotlib in one style."""
