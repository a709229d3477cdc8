"""Documents about the shipped methods: their choices on the axes, their windows, and docs/methods.md."""
