"""Robustness of a step: memory, faults, and profiling."""
