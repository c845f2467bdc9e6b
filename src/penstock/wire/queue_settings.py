"""Policies of queues as `penstock.v1` writes them, and back: for the engine and the client."""

from __future__ import annotations

from typing import Final

from penstock.wire import penstock_v1 as w
from penstock.wire.queue import QueuePolicy, Rate

PERIOD: Final = "PT1S"


def policy_of(settings: w.QueueSettings) -> QueuePolicy:
    """What is 0 or empty is not given."""
    return QueuePolicy(
        settings.job_types,
        settings.paused,
        settings.concurrency or None,
        settings.concurrency_per_key or None,
        _rate(settings.rate),
        _rate(settings.rate_per_key),
        not settings.unfair,
        {weight.flow_key: weight.weight for weight in settings.weights},
        settings.runs or None,
    )


def _rate(rate: w.QueueRate | None) -> Rate | None:
    return None if rate is None else Rate(rate.limit, rate.period or PERIOD, rate.burst or None, rate.window)


def settings_of(policy: QueuePolicy) -> w.QueueSettings:
    """What is not given is 0, or empty."""
    return w.QueueSettings(
        job_types=policy.job_types,
        paused=policy.paused,
        concurrency=policy.concurrency or 0,
        concurrency_per_key=policy.concurrency_per_key or 0,
        rate=_sent(policy.rate),
        rate_per_key=_sent(policy.rate_per_key),
        unfair=not policy.fair,
        weights=[w.QueueWeight(key, weight) for key, weight in policy.weights.items()],
        runs=policy.runs or 0,
    )


def _sent(rate: Rate | None) -> w.QueueRate | None:
    return None if rate is None else w.QueueRate(rate.limit, rate.period, rate.burst or 0, rate.window)
