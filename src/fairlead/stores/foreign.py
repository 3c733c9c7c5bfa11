"""Connections of the application's own: of which library one is, and what is refused of all.

No library is imported: a connection tells by its class where it comes from.
"""

from collections.abc import Mapping
from typing import TypeVar

from fairlead.core.errors import ConfigError

Kind = TypeVar("Kind")

ALCHEMY = tuple(("sqlalchemy", name) for name in ("Connection", "Session", "scoped_session"))
"""The package and the class of SQLAlchemy's connections and sessions."""
ASYNC_ALCHEMY = tuple(
    ("sqlalchemy", name) for name in ("AsyncConnection", "AsyncSession", "async_scoped_session")
)


def kind_of(connection: object, kinds: Mapping[tuple[str, str], Kind]) -> Kind | None:
    """Return what is known of the class of a connection, or of one that it is made from."""
    for base in type(connection).__mro__:
        found = kinds.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return found
    return None


def stranger(connection: object, place: str, known: str) -> ConfigError:
    """Return the refusal of what is no connection of a library that we know."""
    return ConfigError(
        f"connection= must be a connection to {place}, not {type(connection).__module__}."
        f"{type(connection).__qualname__}; pass {known}"
    )


def is_async(connection: object) -> ConfigError:
    """Return the refusal of an async connection in plain code."""
    return ConfigError(
        f"{type(connection).__qualname__} is an async connection; use it from a coroutine, "
        "with `await task.using(connection=…).aenqueue(…)` or `async with job.commit(conn)`"
    )


def commits_itself() -> ConfigError:
    """Return the refusal of a connection without a transaction that the job's end could be in."""
    return ConfigError(
        "job.commit(conn) needs a connection with an open transaction; this one commits every "
        "statement by itself; begin one first, or leave conn out"
    )
