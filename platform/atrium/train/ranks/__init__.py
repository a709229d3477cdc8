"""Training on several ranks: communication, shared work, sharded parameters, and reports of differences."""
