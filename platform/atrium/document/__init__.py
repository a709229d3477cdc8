"""Documents: the output of commands and pages as typed records, which `views` renders as text and figures."""
