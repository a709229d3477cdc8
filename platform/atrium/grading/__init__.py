"""Grading: verdicts from a text and a reference answer, and rewards from verdicts; never imports torch."""
