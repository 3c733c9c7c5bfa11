"""A PgBouncer of our own before a PostgreSQL, which gives out its connections per transaction."""

import signal
import socket
from collections.abc import Mapping, Sequence

from fairlead.bench.servers.postgres import PostgresSpeaker
from fairlead.bench.servers.programs import program
from fairlead.bench.servers.server import HOST

SETTINGS = {
    "listen_addr": HOST,
    "unix_socket_dir": "",
    "auth_type": "hba",
    "pool_mode": "transaction",
    "max_client_conn": "500",
    "default_pool_size": "20",
    "admin_users": "postgres",
    # A login that failed while the server was down shall not make the next ones wait.
    "server_login_retry": "0.1",
}
HBA = f"host all postgres {HOST}/32 trust\nhost all all {HOST}/32 scram-sha-256\n"


class PgBouncer(PostgresSpeaker):
    """Transaction pooling before the server at a port.

    `roles` are the names and passwords of who may log in besides the superuser;
    `settings` win over ours. The database `pgbouncer` answers questions such as
    SHOW POOLS.
    """

    signals = {"fast": signal.SIGTERM, "immediate": signal.SIGTERM, "smart": signal.SIGINT}

    def __init__(
        self,
        server_port: int,
        *,
        roles: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._server_port = server_port
        self._roles = {"postgres": ""} | dict(roles or {})
        self._settings = SETTINGS | dict(settings or {})

    def _prepare(self) -> None:
        roles = [f'"{_doubled(name)}" "{_doubled(word)}"\n' for name, word in self._roles.items()]
        (self.folder / "roles").write_text("".join(roles))
        (self.folder / "hba").write_text(HBA)

    def _command(self) -> Sequence[str]:
        files = {"auth_file": self.folder / "roles", "auth_hba_file": self.folder / "hba"}
        settings = self._settings | files | {"listen_port": self.port}
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._server_port}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        path = self.folder / "pgbouncer.ini"
        path.write_text("\n".join(lines) + "\n")
        return [program("pgbouncer"), str(path)]

    def _ready(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True


def _doubled(text: str) -> str:
    return text.replace('"', '""')
