"""The dashboard: a local web application that shows the runs in `runs/`, with live updates."""
