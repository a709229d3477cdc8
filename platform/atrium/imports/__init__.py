"""Import of results from other programs as run directories of kind `imported`."""
