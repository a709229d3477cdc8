"""`atrium train`: the command, its checks, and how its processes start."""
