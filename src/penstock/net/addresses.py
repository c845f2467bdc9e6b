"""Addresses of clients: which are of one host."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

IPV6_HOST_BITS: Final = 64
"""Of an IPv6 address a host picks so many itself: it has more addresses than can be counted."""
_CACHE_MAX_ITEMS: Final = 10_000


def read_address(text: str) -> IPv4Address | IPv6Address | None:
    """That of a socket; None for one without addresses. IPv4 over an IPv6 socket is IPv4."""
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


@lru_cache(_CACHE_MAX_ITEMS)
def host_of(address: str) -> str:
    """What is counted as one host: an IPv4 address, the first 64 bits of an IPv6 one."""
    ip = read_address(address)
    if ip is None:
        return address
    return str(IPv6Network((ip, 128 - IPV6_HOST_BITS), strict=False) if isinstance(ip, IPv6Address) else ip)
