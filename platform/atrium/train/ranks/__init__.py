"""Several processes as one: how ranks agree, share work and parameters, and differ."""
