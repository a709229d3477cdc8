"""Assembly of runs: the only package that builds engines, models and graders from the configuration."""
