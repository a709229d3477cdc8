"""The measurements of a step: sums and counts, mismatch of engine and trainer, traces of rows, FLOPs."""
