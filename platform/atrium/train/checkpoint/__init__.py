"""The state that a run is resumed from: checkpoints, their digests, and batches sampled ahead."""
