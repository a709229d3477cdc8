"""Predictions of a run's memory and time from its settings; neither a model nor torch is loaded."""
