"""The measurements of a step: sums and counts, sampler against trainer, traces of rows, operations."""
