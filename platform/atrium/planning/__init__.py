"""Predictions of a run's memory and time, and the balance of its measured sampling and training times.

This package does not import torch.
"""
