"""The composition root: the one place where configuration meets implementations."""
