"""Penstock's benchmarks: `python -m benchmarks` (or `make bench`) measures an engine through its real transports."""
