"""Metrics of one engine process, and of several as one.

A leaf: imports nothing else of penstock.
"""

from __future__ import annotations

from penstock.telemetry.metrics.aggregate import Aggregate, export
from penstock.telemetry.metrics.registry import Family, Metrics

__all__ = ["Aggregate", "Family", "Metrics", "export"]
