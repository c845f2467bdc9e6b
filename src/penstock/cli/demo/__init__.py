"""`penstock demo`: one whole run before your eyes, with nothing but this package.

Uses the engine as anyone would: `penstock serve` as a process of its own, the client and the worker of the SDK.
"""

from __future__ import annotations

from penstock.cli.demo.run import run_demo

__all__ = ["run_demo"]
