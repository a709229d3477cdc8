"""Sweeps: search spaces, plans, Optuna studies, and workers that share them. Never torch."""
