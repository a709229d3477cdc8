"""What a run is continued from: checkpoints, their digests, and batches sampled ahead."""
