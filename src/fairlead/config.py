"""Settings from TOML and the environment.

[tool.fairlead]                 # in pyproject.toml; other files have no such heading
app = "shop:app"
url = "sqlite:///jobs.db"

[[tool.fairlead.queues]]
name = "mail"
weight = 4

[[tool.fairlead.pools]]
name = "default"
slots = 50
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairlead.core.errors import ConfigError
from fairlead.core.queue import Pool, Queue

DEFAULT_URL = "sqlite:///fairlead.db"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a settings file may say; `app` names the one that commands work with."""

    app: str | None = None
    url: str | None = None
    queues: tuple[Queue, ...] = ()
    pools: tuple[Pool, ...] = ()

    def __repr__(self) -> str:
        """Name what is set; the URL may hold a password."""
        where = f"{self.url.partition(':')[0]}://…" if self.url else None
        return f"<settings of app {self.app!r} on {where}>"


def load(path: str | Path) -> Settings:
    """Read settings from a TOML file: `[tool.fairlead]` of pyproject.toml, all of any other."""
    path = Path(path)
    settings = _read(path)
    if settings is None:
        raise ConfigError(f"{path} has no [tool.fairlead]; add it, or name another file")
    return settings


def _read(path: Path) -> Settings | None:
    """Return what a file says; None if it is a pyproject.toml that says nothing about us."""
    import tomllib  # noqa: PLC0415 (programs without a settings file need no parser)

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read the settings file {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from None
    if path.name == "pyproject.toml":
        tools = document.get("tool", {})
        if not isinstance(tools, dict) or not isinstance(tools.get("fairlead"), dict):
            return None
        document = tools["fairlead"]
    try:
        return msgspec.convert(document, Settings)
    except msgspec.ValidationError as problem:
        raise ConfigError(
            f"{path}: {problem}; it takes app, url, queues and pools, where a queue is written as "
            '[[queues]] with name = "mail" ([[tool.fairlead.queues]] in pyproject.toml)'
        ) from None


def load_here() -> Settings:
    """Read `[tool.fairlead]` of the pyproject.toml in the current folder, if there is one."""
    path = Path("pyproject.toml")
    return (path.is_file() and _read(path)) or Settings()


def choose_url(
    given: str | None, settings: Settings, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the store's URL: from code, else $FAIRLEAD_URL, else the file, else a local file."""
    if given == "":
        raise ConfigError(
            "the URL is empty; leave it out for $FAIRLEAD_URL or sqlite:///fairlead.db, or name one"
        )
    return given or environ.get("FAIRLEAD_URL") or settings.url or DEFAULT_URL
