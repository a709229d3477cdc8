"""The composition root: the one package in which configuration meets implementations."""
