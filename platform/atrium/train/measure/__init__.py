"""What a step measures: sums and counts, sampler against trainer, traces of rows, operations."""
