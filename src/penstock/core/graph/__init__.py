"""A definition as it is once it was read: its steps, their ways, and what follows from them alone."""
