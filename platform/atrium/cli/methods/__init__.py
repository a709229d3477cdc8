"""What methods are, shown and drawn."""
