"""Construction of runs: the only package that builds implementations from the configuration."""
