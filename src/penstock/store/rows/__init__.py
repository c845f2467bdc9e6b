"""What the statements promise, a module a noun; the statements stand in `store/queries`."""
