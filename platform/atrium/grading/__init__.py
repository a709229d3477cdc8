"""Grading: verdicts on completions, and rewards computed from verdicts. This package never imports torch."""
