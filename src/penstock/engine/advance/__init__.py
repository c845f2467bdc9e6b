"""The full path: what locks whole instances, asks `core.advance` and writes what it decided; timers."""
