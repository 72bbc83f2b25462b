"""A guarded engine with a table, for tests of what SQLAlchemy's statements do."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import adapters.sqlalchemy
import bulkhead

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

numbers = itertools.count()


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "guarded_items"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Guarded:
    """A guarded engine, its resource, and a plain engine for the same database."""

    def __init__(self, url: str, **options: Any) -> None:
        name = f"calls-{next(numbers)}"
        options = {"tickets": 2, "error_threshold": 2, "error_timeout": 30, "success_threshold": 1} | options
        engine_options = options.pop("engine", {})
        self.engine: Engine = create_engine(url, **bulkhead.options(name=name, **options), **engine_options)
        self.plain: Engine = create_engine(url)
        found = bulkhead.find(f"sql:{name}")
        assert found is not None
        self.resource = found

    def full(self) -> Any:
        """All tickets taken, by nobody in this context."""
        permits = [self.resource.begin(adapters.sqlalchemy.adapter.query) for _ in range(self.resource.limit or 0)]
        return Full(permits)

    def close(self) -> None:
        self.engine.dispose()
        self.plain.dispose()
        bulkhead.unregister(self.resource.identifier)


class Full:
    def __init__(self, permits: list[Any]) -> None:
        self.permits = permits

    def __enter__(self) -> None:
        return

    def __exit__(self, *raised: object) -> None:
        for ticket, give, shared, give_shared, _ in self.permits:
            give_shared(shared)
            give(ticket)


def one(connection: Connection) -> bool:
    return connection.execute(text("SELECT 1")).scalar() == 1
