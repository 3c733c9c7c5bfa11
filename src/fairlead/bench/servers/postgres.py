"""A PostgreSQL of our own, which may be restarted, killed and frozen."""

import atexit
import functools
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlencode

from fairlead.bench.servers.guard import Guard
from fairlead.bench.servers.programs import program
from fairlead.bench.servers.server import HOST, Server, ServerFailed, private_folder, rights

INITDB = "--no-sync --no-instructions --auth=trust --encoding=UTF8 --locale=C.UTF-8"

SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "200",
    "timezone": "UTC",
    # Any other kind would outlive a server that is killed.
    "dynamic_shared_memory_type": "mmap",
}
# What is committed has been handed to the kernel, so it survives the death of every process,
# though not a power cut. With synchronous_commit off it would not even survive kill().
QUICK = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
}
DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
}
# The superuser needs no password; every other role needs its own.
HBA = (
    "local all postgres trust",
    f"host all postgres {HOST}/32 trust",
    f"host replication postgres {HOST}/32 trust",
    f"host all all {HOST}/32 scram-sha-256",
)


@functools.cache
def _template() -> Path:
    """Make a cluster once per process; servers start from copies of it."""
    initdb = program("initdb")
    folder = private_folder()
    atexit.register(Guard(folder).close)
    cluster = folder / "data"
    _run([initdb, *INITDB.split(), "--username=postgres", f"--pgdata={cluster}"], folder)
    return cluster


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(  # noqa: S603 (programs that we looked for)
        command, capture_output=True, text=True, check=False, **rights(folder)
    )
    if done.returncode:
        raise ServerFailed.because(f"{command[0]} failed", done.stdout + done.stderr, folder)


class PostgresSpeaker(Server):
    """A server that speaks PostgreSQL's protocol, and is found by its URLs."""

    def url(
        self,
        database: str = "postgres",
        user: str = "postgres",
        password: str = "",
        **options: object,
    ) -> str:
        """Return the URL of a database, with options as its query."""
        secret = f":{quote(password, safe='')}" if password else ""
        query = f"?{urlencode(options)}" if options else ""
        who = quote(user, safe="") + secret
        return f"postgresql://{who}@{HOST}:{self.port}/{quote(database, safe='')}{query}"


class PostgresServer(PostgresSpeaker):
    """A private PostgreSQL. `postgres` is the superuser, and needs no password.

    It is quick and forgets at a power cut, unless it is `durable`. Lines of `hba`
    stand before those of our own, `settings` win over ours.
    """

    signals: ClassVar = {
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
        "smart": signal.SIGTERM,
    }

    def __init__(
        self,
        *,
        durable: bool = False,
        hba: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        super().__init__(place)
        self._hba = (*hba, *HBA)
        self._settings = SETTINGS | (DURABLE if durable else QUICK) | dict(settings or {})

    @property
    def data(self) -> Path:
        """Where its cluster is."""
        return self.folder / "data"

    def _prepare(self) -> None:
        program("postgres")  # Who lacks it is told so first.
        _run(["cp", "-Rp", str(_template()), str(self.data)], self.folder)
        (self.data / "pg_hba.conf").write_text("\n".join(self._hba) + "\n")

    def _command(self) -> Sequence[str]:
        settings = self._settings | {"unix_socket_directories": str(self.folder)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [program("postgres"), "-D", str(self.data), "-p", str(self.port), *options]

    def _ready(self) -> bool:
        """Look into the file in which PostgreSQL tells it, as pg_ctl does."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
