"""Documents: what commands and pages show, as typed records that views render in every medium."""
