"""Memory limits, out-of-memory handling, skipped updates, and profiling of training steps."""
