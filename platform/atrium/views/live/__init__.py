"""Displays of a run in progress: lines for its log and for pipes, and a live view in a terminal."""
