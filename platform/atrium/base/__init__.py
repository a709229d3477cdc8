"""Errors, records, settings classes, metrics and files: open to every package, and importing none of them."""
