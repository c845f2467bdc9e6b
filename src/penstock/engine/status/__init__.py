"""What operators look at: what the engine does, what stands still, and why."""
