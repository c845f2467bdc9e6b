"""Orders behind FastAPI with SQLAlchemy: the row of an order and the start of its workflow are one transaction.

    penstock serve                       # with WE_POSTGRES_DSN: the database that the orders are in, too
    penstock migrate --may-start shop    # once: the role of the application
    DATABASE=postgresql+asyncpg://shop@localhost/shop uvicorn sql_fastapi:api

    curl -X PUT localhost:8000/orders/17

Sent twice, the second is refused, and so is the start of a second workflow. What is refused leaves no row behind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from penstock.client.sql import AsyncRequests

PENSTOCK_SCHEMA = os.environ.get("PENSTOCK_SCHEMA", "penstock")
database = create_async_engine(os.environ["DATABASE"])
sessions = async_sessionmaker(database, expire_on_commit=False)


class Base(DeclarativeBase):
    """The tables of this application."""


class Order(Base):
    """An order, and the instance of the workflow that carries it out."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    instance: Mapped[str | None]


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    async with database.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await database.dispose()


api = FastAPI(lifespan=lifespan)


async def begun() -> AsyncGenerator[AsyncSession]:
    """A transaction for each request: committed at its end, rolled back by an exception."""
    async with sessions() as session, session.begin():
        yield session


Begun = Annotated[AsyncSession, Depends(begun, scope="function")]


@api.put("/orders/{id}", status_code=201)
async def place(id: int, session: Begun) -> dict[str, str]:
    try:
        penstock = AsyncRequests(session, schema=PENSTOCK_SCHEMA)
        order = Order(id=id, instance=await penstock.start("order", {"order": id}, instance_key=f"order-{id}"))
        session.add(order)
        await session.flush()
    except IntegrityError:
        raise HTTPException(409, "this order is placed already") from None
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "PK006":
            raise
        raise HTTPException(409, "this order is being carried out") from None
    return {"instance": str(order.instance)}
