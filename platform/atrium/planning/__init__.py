"""Predictions of a run's memory and time, and the balance of its recorded steps, without a model or torch."""
