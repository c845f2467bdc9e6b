"""The lanes of starts: plain ones, and those in a transaction of their own."""
