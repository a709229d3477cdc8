"""Engines that sample completions, and batching of rollouts into tensors."""
