"""One page of any list, and how many there are: REST answers with it, the engine's lists give it, the SDK reads it."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.wire.noun import Answer

T = TypeVar("T")
U = TypeVar("U")


class Count(Answer, frozen=True, kw_only=True):
    """How many there are, to 10,000; not exact when there are more, or too many to look at."""

    count: int
    exact: bool


class Page(Answer, Generic[T], frozen=True):
    """Some items of a list.

    Asked for by number it says ``total``, how many there are on all pages: exact, unless ``total_is_estimate``. Asked
    for by ``limit`` and ``cursor`` it says ``next``, the cursor of what comes after its items, none at the end of the
    list; before the end it may have fewer items than asked for, or none.
    """

    items: list[T]
    page: int | None = None
    page_size: int | None = None
    total: int | None = None
    total_is_estimate: bool = False
    next: str | None = None

    def holding(self, items: list[U]) -> Page[U]:
        """Return the same place of the list with ``items``, made of its own."""
        return Page(
            items=items,
            page=self.page,
            page_size=self.page_size,
            total=self.total,
            total_is_estimate=self.total_is_estimate,
            next=self.next,
        )
