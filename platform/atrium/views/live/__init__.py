"""Displays of training while it runs: lines for its log and for pipes, a frame in a terminal."""
