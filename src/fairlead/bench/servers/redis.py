"""A Redis of our own, which may be restarted, killed and frozen."""

import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlencode

from fairlead.bench.servers.programs import program
from fairlead.bench.servers.server import HOST, Server, ServerFailed, free_port

SETTINGS = {
    "bind": HOST,
    "save": '""',
    "maxmemory-policy": "noeviction",
    # The guard knows the process by the folder in its command, which must stay as it is.
    "set-proc-title": "no",
}
SOCKET = "redis.sock"
LONGEST = 107  # Redis cuts the path of a socket after so many bytes, and does not say so.


class RedisServer(Server):
    """A private Redis. It keeps what it was told in an append-only file, unless told not to.

    Each of `acl` makes a user, as in `clerk on >secret ~* &* +@all`; `password` is that
    of the default user. `settings` win over ours; each is one line of `redis.conf`.
    """

    signals: ClassVar = {"fast": signal.SIGTERM, "immediate": signal.SIGTERM}

    def __init__(
        self,
        *,
        appendonly: str = "yes",
        appendfsync: str = "everysec",
        password: str = "",
        acl: Sequence[str] = (),
        cluster: bool = False,
        settings: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        super().__init__(place)
        self.password = password
        self._acl = tuple(acl)
        self._cluster = cluster
        self._buses: dict[int, int] = {}
        self._settings = SETTINGS | {"appendonly": appendonly, "appendfsync": appendfsync}
        self._settings |= dict(settings or {})

    @property
    def socket(self) -> Path:
        """Where its socket is."""
        return self.folder / SOCKET

    @property
    def bus(self) -> int:
        """The port at which the nodes of a cluster talk; it stays as long as the other does."""
        return self._buses.setdefault(self.port, free_port())

    def _prepare(self) -> None:
        program("redis-server")  # Who lacks it is told so first.
        if len(str(self.socket)) > LONGEST:
            raise ServerFailed(f"{self.socket} is too long for a socket; name another folder")

    def _command(self) -> Sequence[str]:
        path = self.folder / "redis.conf"
        path.write_text("\n".join(self._lines()) + "\n")
        path.chmod(0o644)  # The folder is closed to others; who runs the server must read it.
        return [program("redis-server"), str(path)]

    def _lines(self) -> list[str]:
        settings = {"port": self.port, "unixsocket": self.socket, "dir": self.folder}
        if self._cluster:
            settings |= {"cluster-enabled": "yes", "cluster-port": self.bus}
        if self.password:
            settings["requirepass"] = _quoted(self.password)
        lines = [f"{name} {value}" for name, value in (settings | self._settings).items()]
        return [*lines, *(f"user {rules}" for rules in self._acl)]

    def _ready(self) -> bool:
        """Ask at the socket, where nobody else can answer."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                said = probe.recv(100)
            except OSError:
                return False
        return said.startswith((b"+PONG", b"-NOAUTH"))

    # Where it is

    def url(self, database: int = 0, user: str = "", password: str = "", **options: object) -> str:
        """Return the URL of a database, with options as its query."""
        query = f"?{urlencode(options)}" if options else ""
        return f"redis://{self._who(user, password)}{HOST}:{self.port}/{database}{query}"

    def socket_url(
        self, database: int = 0, user: str = "", password: str = "", **options: object
    ) -> str:
        """Return the URL of a database by way of the socket."""
        query = urlencode({"db": database} | options)
        return f"unix://{self._who(user, password)}{quote(str(self.socket))}?{query}"

    def _who(self, user: str, password: str) -> str:
        secret = password or ("" if user else self.password)
        colon = f":{quote(secret, safe='')}" if secret else ""
        return f"{quote(user, safe='')}{colon}@" if user or secret else ""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
