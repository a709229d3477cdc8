"""`atrium claim`: list what papers claim, check data against it, reproduce it."""
