"""Copies of runs in trackers such as MLflow and W&B, made from the run directories alone."""
