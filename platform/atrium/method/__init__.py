"""The definition of a method: one declared class per value of each axis. Never a tensor."""
