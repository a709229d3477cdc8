"""The training loop, policy updates, checkpoints, and handling of failures."""
