"""Where jobs live. One store per URL scheme; drivers stay inside their store's folder."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from fairlead.core.clock import Clock
from fairlead.core.errors import ConfigError, MissingExtra, did_you_mean
from fairlead.core.store import Store
from fairlead.core.text import brief, cut
from fairlead.core.url import split_url

SCHEMES = ("memory", "sqlite", "postgresql", "redis", "rediss", "redis+cluster", "unix")


def store_for(url: str, clock: Clock | None = None) -> Store:
    """Build the store a URL names. Nothing is opened yet."""
    if not isinstance(url, str):
        # Its type alone: a URL as bytes, say, may hold a password.
        raise ConfigError(
            "the store is named by a URL such as sqlite:///jobs.db, not by a value of type "
            f"{type(url).__name__}"
        )
    parts = split_url(url)
    if parts.scheme == "memory":
        from fairlead.stores.memory.store import MemoryStore  # noqa: PLC0415 (stores load when used)

        return MemoryStore(clock)
    if parts.scheme == "sqlite":
        from fairlead.stores.sqlite.store import sqlite_store  # noqa: PLC0415 (stores load when used)

        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        return sqlite_store(_sqlite_path(url), options, clock)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url, clock)
    if parts.scheme in ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix"):
        return _redis(url, clock)
    # The URL itself may hold a password: name only its scheme.
    raise ConfigError(
        f"no store is known for a URL of scheme {brief(parts.scheme)}"
        f"{did_you_mean(parts.scheme, SCHEMES)}; use sqlite:///jobs.db, "
        "postgresql://host/database, redis://host, or memory:// in tests"
    )


def _postgres(url: str, clock: Clock | None) -> Store:
    try:
        from fairlead.stores.postgres.store import postgres_store  # noqa: PLC0415 (as above)
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtra("postgres", "postgresql://") from None
    return postgres_store(url, clock)


def _redis(url: str, clock: Clock | None) -> Store:
    try:
        from fairlead.stores.redis.store import redis_store  # noqa: PLC0415 (as above)
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("redis", "hiredis"):
            raise
        raise MissingExtra("redis", "redis://") from None
    return redis_store(url, clock)


def _sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if ":memory:" in url:
        raise ConfigError("for jobs in memory, use memory://")
    if parts.netloc or not url.startswith("sqlite:///"):
        # Where there is an @ or a colon, any part may be one of a password.
        name = "jobs.db" if {"@", ":"} & set(url[7:]) else parts.netloc or parts.path.lstrip("/")
        raise ConfigError(
            f"sqlite takes three slashes; write sqlite:///{cut(name, 80)} for a file in the "
            "current folder, or sqlite:////full/path"
        )
    if parts.fragment or "\0" in path:
        raise ConfigError("a file name with # is written with %23 in a URL; NUL cannot be in one")
    if not path:
        raise ConfigError("sqlite:/// needs a file, as in sqlite:///jobs.db")
    return Path(path)
