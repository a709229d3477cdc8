"""Typed and validated configuration, composed by Hydra. This package does not import torch."""
