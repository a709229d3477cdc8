"""Claims of papers: definitions in files, evidence from runs or tables, and verdicts."""
