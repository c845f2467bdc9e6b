"""The pure core: definitions, expressions and the state machine. No I/O, no clock, no randomness, no logging."""
