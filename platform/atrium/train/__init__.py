"""Log-probabilities, optimizer steps, checkpoints, and the training loop."""
