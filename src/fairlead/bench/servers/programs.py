"""Where the programs of servers are on this machine."""

import os
import shutil
from pathlib import Path

from fairlead.core.errors import ConfigError

PACKAGES = {
    "postgres": "postgresql",
    "initdb": "postgresql",
    "pgbouncer": "pgbouncer",
    "redis-server": "redis-server",
}
BINARIES = Path("/usr/lib/postgresql")
ELSEWHERE = "/usr/sbin"  # Debian keeps pgbouncer where only root's PATH looks.


class MissingProgram(ConfigError):
    """A server program is not installed; says what to do."""

    def __init__(self, names: list[str]) -> None:
        packages = " ".join(sorted({PACKAGES[name] for name in names}))
        super().__init__(
            f"this needs {', '.join(names)}, which this machine does not have; "
            f"as root: apt install {packages}"
        )


def program(name: str) -> str:
    """Return the path of a server program."""
    if path := _find(name):
        return path
    raise MissingProgram([name])


def missing() -> list[str]:
    """Return the names of those that are not installed."""
    return [name for name in PACKAGES if _find(name) is None]


def _find(name: str) -> str | None:
    """Look where Debian keeps each version of PostgreSQL, the newest first, and in the PATH."""
    newest = sorted(BINARIES.glob("*/bin"), key=_version, reverse=True)
    path = os.pathsep.join([*map(str, newest), os.environ.get("PATH", os.defpath), ELSEWHERE])
    return shutil.which(name, path=path)


def _version(folder: Path) -> tuple[int, ...]:
    parts = folder.parent.name.split(".")
    return tuple(int(part) for part in parts if part.isdigit())
