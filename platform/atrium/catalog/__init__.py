"""Documents about the shipped methods: their choices on the axes, windows, and the page docs/methods.md."""
