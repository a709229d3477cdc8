"""Views: documents as text in a terminal, Markdown, LaTeX, HTML and figures. They compute no statistics."""
