"""Problems, datasets, prompts, and the built-in arithmetic task."""
