"""The shipped methods: their choices on the axes, their windows, and the page docs/methods.md."""
