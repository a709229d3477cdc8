"""Figures drawn by matplotlib: each kind in one place, one look for all."""
