"""Sweeps: search spaces, plans, Optuna studies, and workers. This package does not import torch."""
