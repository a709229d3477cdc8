"""The commands over the runs folder: list, show, export, clean, sync."""
