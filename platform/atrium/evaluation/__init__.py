"""Benchmark times policy to per-problem outcomes, and estimators over them."""
