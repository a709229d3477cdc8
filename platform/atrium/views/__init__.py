"""Conversion of documents to terminal output, Markdown, LaTeX, HTML and figures, without statistics."""
