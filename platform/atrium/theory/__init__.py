"""What the theorems say about an objective, measured on a policy small enough to enumerate."""
