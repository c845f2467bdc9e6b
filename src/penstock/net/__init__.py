"""Connections from outside: who is let in, TLS, addresses, and what they may have."""
