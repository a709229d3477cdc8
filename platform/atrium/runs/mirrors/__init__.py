"""Copies of a run folder in trackers such as MLflow and W&B, delivered from the folder alone."""
