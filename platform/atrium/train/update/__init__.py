"""Policy updates: forward passes, log-probabilities, packing, and the optimizer."""
