"""Errors, records, settings classes, metrics and file helpers.

Every package may import this one; it imports no other package of Atrium.
"""
