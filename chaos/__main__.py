"""`python -m chaos`."""

from __future__ import annotations

import sys

from chaos.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
