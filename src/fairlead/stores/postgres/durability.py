"""What a server keeps of what it accepted, by its own settings.

These may come from the server, the database, the role or the URL, so a connection of ours is
asked for what holds on it. Every role may ask.
"""

import msgspec

from fairlead.stores.postgres.lane import NO_PATH, Connection

QUESTION = """
SELECT current_setting('fsync') = 'on' AS fsync,
       current_setting('full_page_writes') = 'on' AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit
"""


class Durability(msgspec.Struct, frozen=True):
    """The settings on which it depends whether an accepted job survives."""

    fsync: bool
    full_page_writes: bool
    synchronous_commit: str

    @property
    def kind(self) -> str:
        """The class of what is accepted, as `Store.durability` names it."""
        return "fast" if self._weakness else "durable"

    @property
    def survives(self) -> str:
        """What an accepted job survives, in words."""
        return self._weakness or "an accepted job survives kill -9 and power cuts"

    @property
    def _weakness(self) -> str | None:
        """Say what a setting costs, the worst one first."""
        if not self.fsync:
            return "fsync is off: a power cut can destroy the database, and all jobs with it"
        if not self.full_page_writes:
            return "full_page_writes is off: a power cut can damage the database"
        if self.synchronous_commit == "off":
            return (
                "synchronous_commit is off: a power cut or a crash of the server takes the last "
                "moment of accepted jobs"
            )
        return None


def durability_of(connection: Connection) -> Durability:
    """Ask a connection."""
    with connection.transaction():
        connection.execute(NO_PATH)
        row = connection.execute(QUESTION).fetchone() or (True, True, "on")
    return Durability(*row)
