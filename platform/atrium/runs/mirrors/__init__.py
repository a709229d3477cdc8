"""Copies of a run folder in MLflow and W&B, made by a process of its own that reads the folder only."""
