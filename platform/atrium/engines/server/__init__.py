"""Engines as vLLM servers: processes of this machine, or servers at given addresses."""
