"""Predictions of a run's memory and time, and its measured sampling and training times, without torch."""
