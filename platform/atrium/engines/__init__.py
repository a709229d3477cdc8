"""Engines that sample completions, and the conversion of rollouts to tensors."""
