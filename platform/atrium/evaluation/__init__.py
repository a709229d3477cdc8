"""Evaluation of a policy on benchmarks: graded samples of each problem, and estimates from them."""
