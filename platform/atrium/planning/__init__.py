"""What a run will need, computed before anything is loaded. Never torch."""
