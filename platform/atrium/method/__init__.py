"""What a method is: one declared class per value of an axis. Settings and knowledge, never a tensor."""
