"""Displays of a run's progress: lines of text for logs and pipes, and a live view for terminals."""
