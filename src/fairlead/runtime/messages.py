"""What a supervisor and its processes say to each other, over a socket pair."""

import msgspec

from fairlead.core.events import LogStyle
from fairlead.runtime.run import Pair
from fairlead.runtime.takeover import Unclear
from fairlead.runtime.workshop import Choice, Terms


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first word to a new process: who it is, and how it works."""

    worker: str
    terms: Terms
    choice: Choice
    log: LogStyle


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Claim no more, finish within the grace time, give the rest back, exit."""

    grace: float


class Lost(msgspec.Struct, frozen=True, tag=True):
    """These leases are another worker's now."""

    pairs: tuple[Pair, ...]


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """A person cancelled these."""

    pairs: tuple[Pair, ...]


class Inherit(msgspec.Struct, frozen=True, tag=True):
    """Ask `reconcile` about this run of a process that is no more, and settle it."""

    run: Unclear


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process has loaded the app and begins to claim."""


class Outdated(msgspec.Struct, frozen=True, tag=True):
    """The store told the process that this program is too old for its schema."""

    problem: str


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The process has ended its work and exits; what is on its board still runs in a thread."""


class Hired(msgspec.Struct, frozen=True, tag=True):
    """The process has started another one, for handlers."""

    pid: int


class Gone(msgspec.Struct, frozen=True, tag=True):
    """That other one has ended."""

    pid: int


ToProcess = Begin | Stop | Lost | Cancel | Inherit
ToSupervisor = Ready | Outdated | Leaving | Hired | Gone
