"""What the others do, each in an environment that has it: these import nothing of ours but `measured`, by its folder.

Each takes a PostgreSQL URL, `default` or `best`, and seconds; writes "ready", waits for a line on its standard input,
works for that long, and writes one JSON object: how many steps it did, in how many seconds.
"""
