"""Text and gold answer to a verdict, and verdicts to rewards; never imports torch."""
