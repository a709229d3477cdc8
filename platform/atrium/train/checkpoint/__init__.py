"""The state from which a run is resumed: checkpoints, their digests, and batches that were sampled ahead."""
