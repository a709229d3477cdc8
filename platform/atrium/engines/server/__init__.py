"""Sampling with vLLM servers: processes on this machine, or servers at given addresses."""
