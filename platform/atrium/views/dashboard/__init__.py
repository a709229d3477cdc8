"""The dashboard: a local web application that shows `runs/`, live during training."""
