"""How often one token or one address may call, and how many calls of a token run at once. All off by default: a fleet
of workers may share a token, an address, or both.

What was counted longest ago is forgotten first, so that the books stay small whoever calls.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from penstock.access.identity import Identity
from penstock.net.addresses import host_of
from penstock.net.allowance import Allowance
from penstock.settings import Settings

BOOK_MAX_ITEMS: Final = 10_000
BURST_S: Final = 1.0
"""What may come at once: as much as in this time, and one call at least."""


class CallLimits:
    """The limits of one process."""

    def __init__(self, settings: Settings) -> None:
        self._per_token = Rates(settings.token_max_calls_per_second)
        self._per_address = Rates(settings.address_max_calls_per_second)
        self._most_running = settings.token_max_running_calls
        self._running: Counter[str] = Counter()

    def take(self, address: str | None) -> str | None:
        """Count a call of an address, before anything is spent on finding out whose it is; why it is refused."""
        if address is not None and not self._per_address.take(host_of(address)):
            return f"more than {self._per_address.per_s:g} calls per second come from this address"
        return None

    def enter(self, caller: Identity | None) -> str | None:
        """Count a call of a token, which `leave` ends; why it is refused, and then it is not counted as running."""
        if caller is None or not caller.limited:
            return None
        if not self._per_token.take(caller.key):
            return f"more than {self._per_token.per_s:g} calls per second come from {caller.name}"
        if self._most_running:
            if self._running[caller.key] >= self._most_running:
                return f"{self._most_running} calls of {caller.name} run already"
            self._running[caller.key] += 1
        return None

    def leave(self, caller: Identity | None) -> None:
        """A call that was counted has ended."""
        if self._most_running and caller is not None and caller.limited:
            self._running[caller.key] -= 1
            if self._running[caller.key] <= 0:
                del self._running[caller.key]


def make_limits(settings: Settings) -> CallLimits | None:
    """None while nothing is limited."""
    wanted = (
        settings.token_max_calls_per_second, settings.address_max_calls_per_second, settings.token_max_running_calls,
    )  # fmt: skip
    return CallLimits(settings) if any(wanted) else None


class Rates:
    """An allowance for each name."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()

    def take(self, name: str) -> bool:
        """Count one; False when it is one too many."""
        if not self.per_s:
            return True
        allowance = self._allowances.get(name)
        if allowance is None:
            if len(self._allowances) >= BOOK_MAX_ITEMS:
                self._allowances.popitem(last=False)
            allowance = self._allowances[name] = Allowance(max(1, int(self.per_s * BURST_S)), self.per_s)
        else:
            self._allowances.move_to_end(name)
        return allowance.take()


class SharedRate:
    """What anybody may ask for without a proof: so many a second in all, and of these so many from one host."""

    def __init__(self, per_s: float, per_host_per_s: float) -> None:
        self._all = Rates(per_s)
        self._hosts = Rates(per_host_per_s)

    def take(self, address: str | None) -> bool:
        """Count one; False when it is one too many. What a host has too many does not count for the others."""
        return self._hosts.take("" if address is None else host_of(address)) and self._all.take("")
