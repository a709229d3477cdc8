"""The records of runs on disk: writing, reading, diagnosis, status and provenance.

This package does not import torch.
"""
