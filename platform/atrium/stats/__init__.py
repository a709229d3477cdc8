"""Statistics on arrays, by numpy and scipy alone: estimates, intervals, power. Nothing here reads a run."""
