"""The definition of a method: an objective's axes, with a class for each kind of choice."""
