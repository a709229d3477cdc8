"""Documents: the output of commands and pages, as typed records that views render in every medium."""
