"""Drawing of figures with matplotlib: a module for each kind of figure, and one common style."""
