"""Log lines, how many of them, and what they never show."""
