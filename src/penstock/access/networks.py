"""Networks whose addresses have a role without proving anything: for SDKs that have no place for a header.

Only the address of the socket counts. What a proxy says of its clients (`X-Forwarded-For`) can be made up by them.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.access.identity import Identity
from penstock.access.roles import read_grant
from penstock.errors import BadRequest
from penstock.net.addresses import read_address

CACHE_MAX_ITEMS: Final = 10_000


class TrustedNetworks:
    """The identities of networks. Of several that hold an address the smallest counts."""

    def __init__(self, lines: Sequence[str]) -> None:
        """``10.0.0.0/8=worker`` each. Raises BadRequest."""
        found: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, Identity]] = []
        for line in lines:
            text, _, roles = line.partition("=")
            try:
                network = ipaddress.ip_network(text.strip())
                grant = read_grant(roles.strip())
            except ValueError as error:
                raise BadRequest(f"trusted_networks: {line!r}: {error}") from error
            except BadRequest as error:
                raise BadRequest(f"trusted_networks: {line!r}: {error.reason}") from error
            found.append((network, Identity.of(f"network:{network}", grant, ambient=True)))
        self._networks = sorted(found, key=lambda item: item[0].prefixlen, reverse=True)
        self._cache: OrderedDict[str, Identity | None] = OrderedDict()

    def find(self, address: str | None) -> Identity | None:
        """Who calls from this address."""
        if not self._networks or address is None:
            return None
        if address in self._cache:
            return self._cache[address]
        if len(self._cache) >= CACHE_MAX_ITEMS:
            self._cache.popitem(last=False)
        found = self._cache[address] = self._look_up(address)
        return found

    def _look_up(self, address: str) -> Identity | None:
        ip = read_address(address)
        return None if ip is None else next((identity for network, identity in self._networks if ip in network), None)
