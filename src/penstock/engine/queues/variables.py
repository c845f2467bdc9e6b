"""Variables as bytes: merging a delta, and a cache of what jobs were handed out with.

The cache serves only instances with a single token, keyed by (token, seq): with several tokens another branch may
have written since. It is bounded in bytes and a miss costs one read, so anything may be dropped at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import msgspec

FOLD_MIN_DELTAS = 64
"""An instance with a token that wrote so many deltas since the last fold is folded: long runs stay linear. A large one
counts for several (`core.advance.recorder.count_delta`)."""

STREAK_MIN, STREAK_MAX = 2, 256
"""Claims in a row of which everything was known, before one relies on it."""

ENTRY_BYTES = 350
"""What an entry of the cache takes besides the variables: key, table and object headers. Without it, `{}` of every job
that another engine completed would be kept for ever."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def merged(variables: bytes, delta: bytes | None) -> bytes:
    """``variables`` with the keys of ``delta`` replaced (shallow). Values are not decoded (2 µs at 200 bytes)."""
    if delta is None or delta == b"{}":
        return variables
    both = _decode(variables)
    both.update(_decode(delta))
    return _encode(both)


def without(variables: str, names: Collection[str]) -> str:
    """``variables`` but for these names. What is no object stays."""
    if not variables.startswith("{"):
        return variables
    return _encode({name: value for name, value in _decode(variables).items() if name not in names}).decode()


class VariablesCache:
    """The latest known variables of single-token instances, least recently used out first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def put(self, token: int, seq: int, variables: bytes) -> None:
        """Keep the variables of an open step execution."""
        size_bytes = len(variables)
        if size_bytes > self._max_bytes // 8:
            return
        key, kept = (token, seq), self._kept
        old = kept.get(key)
        if old is None:
            kept[key] = variables
            self._bytes += size_bytes + ENTRY_BYTES
        else:
            kept.move_to_end(key)
            if old is variables:
                return
            kept[key] = variables
            self._bytes += size_bytes - len(old)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest) + ENTRY_BYTES

    def take(self, token: int, seq: int) -> bytes | None:
        """The variables of an execution that is about to close; they are dropped."""
        return self._forget((token, seq))

    def find(self, token: int, seq: int) -> bytes | None:
        """The variables of an open execution, if they are known."""
        return self._kept.get((token, seq))

    def clear(self) -> None:
        """Drop all."""
        self._kept.clear()
        self._bytes = 0

    def statistics(self) -> tuple[int, int]:
        """Entries and bytes."""
        return len(self._kept), self._bytes

    def _forget(self, key: tuple[int, int]) -> bytes | None:
        old = self._kept.pop(key, None)
        if old is not None:
            self._bytes -= len(old) + ENTRY_BYTES
        return old


class Recollection:
    """Whether the cache is likely to have the variables of all jobs that the next claim finds.

    A claim that is told so reads none, and one that was told wrong reads what it lacks by a statement more. So it takes
    a streak of claims of which everything was known, each time that it was wrong one twice as long.
    """

    def __init__(self) -> None:
        self._streak = 0
        self._needed = STREAK_MIN

    @property
    def is_good(self) -> bool:
        """Return whether the next claim is to rely on it."""
        return self._streak >= self._needed

    def note(self, *, complete: bool) -> None:
        """A claim found jobs; whether the cache had the variables of all of them."""
        if complete:
            self._streak += 1
            if self._streak >= 2 * self._needed > 2 * STREAK_MIN:
                self._needed //= 2
                self._streak = self._needed
        else:
            if self.is_good:
                self._needed = min(2 * self._needed, STREAK_MAX)
            self._streak = 0
