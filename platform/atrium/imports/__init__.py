"""Results from other programs, read into run directories of kind `imported`."""
