"""Views of documents: terminal output, Markdown, LaTeX, HTML and figures. Views compute no statistics."""
