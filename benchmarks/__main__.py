"""`python -m benchmarks`."""

from __future__ import annotations

import sys

from benchmarks.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
