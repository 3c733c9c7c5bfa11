"""Where jobs live. One store per URL scheme; drivers stay inside their store's folder."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from fairlead.core.clock import Clock
from fairlead.core.errors import ConfigError, did_you_mean
from fairlead.core.store import Backend

SCHEMES = ("memory", "sqlite")


def store_for(url: str, clock: Clock | None = None) -> Backend:
    """Build the store a URL names. Nothing is opened yet."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        from fairlead.stores.memory.store import MemoryStore  # noqa: PLC0415 (stores load when used)

        return MemoryStore(clock)
    if parts.scheme == "sqlite":
        from fairlead.stores.sqlite.store import sqlite_store  # noqa: PLC0415 (stores load when used)

        return sqlite_store(_sqlite_path(url), dict(parse_qsl(parts.query)), clock)
    # The URL itself may hold a password: name only its scheme.
    raise ConfigError(
        f"no store is known for a URL of scheme {parts.scheme!r}"
        f"{did_you_mean(parts.scheme, SCHEMES)}; use sqlite:///jobs.db, or memory:// in tests"
    )


def _sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc:
        raise ConfigError(
            f"sqlite://{parts.netloc}… has two slashes; write sqlite:///{parts.netloc} for a file "
            "in the current folder, or sqlite:////full/path"
        )
    if not path or path == ":memory:":
        raise ConfigError(
            "sqlite:/// needs a file, as in sqlite:///jobs.db; for jobs in memory use memory://"
        )
    return Path(path)
