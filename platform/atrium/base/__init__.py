"""Errors, records, settings classes, metrics and file helpers.

Every package may import them; they import none.
"""
