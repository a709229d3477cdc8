"""Comparison of runs from their run directories: arms, verdicts, tables and figures, without torch."""
