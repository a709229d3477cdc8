"""Figures and statistics over run folders; never imports torch."""
