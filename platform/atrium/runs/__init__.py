"""The run folder, the terminal view, and provenance; never imports torch."""
