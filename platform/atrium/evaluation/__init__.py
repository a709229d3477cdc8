"""Evaluation of a policy on benchmarks: outcomes per problem, and estimates from them."""
