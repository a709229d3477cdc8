"""Several processes as one: agreement, shared work, sharded parameters, and differences between ranks."""
