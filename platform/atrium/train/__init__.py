"""Log-probabilities, optimiser step, checkpoints, and the one training loop."""
