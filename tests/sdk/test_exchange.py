"""What an operation of the client holds is sent: a field that its exchange does not read would be lost in silence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.client import exchange
from penstock.client.call import RowCall
from penstock.client.operation import Operation


class Watched:
    """An operation, and which of its fields were read."""

    def __init__(self, operation: Operation[Any]) -> None:
        self._operation = operation
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._operation, name)


def made(kind: Any) -> Any:
    """One of these, with something in each field that has to be given."""
    about = msgspec.inspect.type_info(kind)
    assert isinstance(about, msgspec.inspect.StructType)
    return kind(**{field.name: value_of(field.type) for field in about.fields if field.required})


def value_of(kind: Any) -> Any:
    match kind:
        case msgspec.inspect.StructType():
            return made(kind.cls)
        case msgspec.inspect.ListType() | msgspec.inspect.CollectionType():
            return [value_of(kind.item_type)]
        case msgspec.inspect.IntType():
            return 1
        case _:
            return "x"


BY_HAND = [kind for kind in exchange._EXCHANGES if kind is not RowCall]
"""The exchanges of rows come from their fields (tests/api/test_recorded.py)."""


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_every_field_of_an_operation_is_sent(kind: type[Operation[Any]]) -> None:
    watched = Watched(made(kind))
    exchange._EXCHANGES[kind](watched)
    fields = {field.name for field in msgspec.structs.fields(kind)}
    assert fields <= watched.read
