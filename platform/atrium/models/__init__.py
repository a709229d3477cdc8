"""Building, loading and warming up policies."""
