"""What the verbs answer: JSON texts, each read as "at least these".

The functions in the database may be those of a newer program. What stands behind the last field, or
under a name that is not known here, is passed over.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from fairlead.core.entries import Entry
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Job
from fairlead.core.selection import Unknown
from fairlead.core.store import Upkeep
from fairlead.stores.looks import Place
from fairlead.stores.records import AttemptRow


class Reply(msgspec.Struct, array_like=True, gc=False):
    """A list of fields; later ones may follow."""


class Fresh(Reply):
    """Of a put: the ids of those jobs that are new."""

    ids: set[JobId]


class Gated(Reply):
    """How many jobs of a queue a claim stepped over, and where it stopped."""

    number: int
    stopped: Place | None = None


class Parked(Reply):
    """The jobs of one kind that a claim parked, because no live worker knows their task."""

    id: JobId
    task: str
    version: int
    queue: str
    options: str | None
    jobs: int

    @property
    def kind(self) -> Unknown:
        """The same as a claim tells it in whatever store."""
        return Unknown(**asdict(self))


class Saw(Reply):
    """What a claim tells besides its jobs, see `claim` in the database."""

    now: int
    parked: list[Parked]
    gated: dict[str, Gated]
    ended: list[str]
    awake: list[str]
    stirred: list[str]
    looked: bool
    cost: int
    cut: bool


class Held(Reply):
    """Of an extend: the jobs that are held, those to be cancelled, and those that are locked."""

    ids: list[JobId]
    asked: set[JobId]
    locked: list[JobId]


class Rest(Reply):
    """Of a settle that was not all written: what was, what a person wants cancelled, what waits."""

    written: list[JobId]
    asked: dict[JobId, str]
    busy: list[JobId]


class BroughtBack(Reply):
    """Of an announcement: how many jobs are known again."""

    number: int


class Due(Reply):
    """When the next parked job falls due, and the present instant."""

    next_at: int | None
    now: int


class Counts(Reply):
    """What a round of upkeep did."""

    promoted: int
    brought_back: int
    expired: int
    pruned_jobs: int
    pruned_attempts: int
    pruned_entries: int = 0


class Touched(Reply):
    """The ids, or the queue, that a person's action was done to."""

    ids: list[JobId]


class Versions(Reply):
    """Of entries that were written: the version of each; None if a fence has moved on."""

    versions: list[int | None] | None


class Small(Reply):
    """An entry."""

    kind: str
    key: str
    value: str
    version: int
    owner: JobId | None = None
    due_at: int | None = None
    expires_at: int | None = None


class Announced(Reply):
    """A live worker."""

    id: str
    capable: str
    pools: str
    processes: int
    started_at: int
    live_until: int
    level: int = 1


class InUse(Reply):
    """How many jobs use a limit under one of its keys."""

    limit: str
    key: str
    number: int


class Flaw(Reply):
    """A damage, and how many of its kind there are."""

    what: str
    whose: str
    number: int


class Met(Reply):
    """A damage that was met by a repair, and why it could not be mended, if it could not."""

    what: str
    whose: str
    why: str | None


class Mended(Reply):
    """What a step of a repair met, and from where to go on."""

    met: list[Met]
    kind: int | None
    start: str


class Stray(Reply):
    """A right that somebody was given, though not by `allow`, or code that runs beside ours."""

    kind: str
    name: str
    who: str
    rights: str | None


class _More(msgspec.Struct, gc=False):
    """What few leased jobs have, by the names of `Job`."""

    options: str | None = None
    expires_at: int | None = None
    crashes: int = 0
    shared_deaths: int = 0
    lost: bool = False
    worker: str | None = None
    claimed_at: int | None = None
    lease_until: int | None = None


class _Head(Reply):
    """What a leased job begins with, see `leased` in the database."""

    version: int
    attempt: int
    fence: int
    run_at: int
    order_at: int
    enqueued_at: int
    parked: int
    id: int
    task: int
    queue: int
    more: _More | None = None


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A leased job, and its place: in the order of its queue, or out of turn."""

    job: Job
    place: Place
    aside: bool


_decode_head = msgspec.json.Decoder(_Head).decode


def leased_of(text: str, worker: str, claimed_at: int, lease_until: int) -> Leased:
    """Return a leased job; what it does not tell of its lease is told here."""
    first, _, rest = text.partition("\n")
    head = _decode_head(first)
    task = head.id + head.task
    queue = task + head.queue
    job = Job(
        JobId(rest[: head.id]),
        rest[head.id : task],
        head.version,
        rest[task:queue],
        rest[queue:],
        None,
        head.attempt,
        0,
        head.fence,
        head.run_at,
        head.enqueued_at,
        None,
        claimed_at,
        lease_until,
        worker,
    )
    if head.more is not None:
        more = asdict(head.more).items()
        job = replace(job, **{name: value for name, value in more if value is not None})
    return Leased(job, (head.order_at, job.id), head.parked == ASIDE)


ASIDE = 3
"""What the column `parked` of a job says that is in the order, but out of turn."""

fresh_of: Callable[[str], Fresh] = msgspec.json.Decoder(Fresh).decode
saw_of: Callable[[str], Saw] = msgspec.json.Decoder(Saw).decode
held_of: Callable[[str], Held] = msgspec.json.Decoder(Held).decode
rest_of: Callable[[str], Rest] = msgspec.json.Decoder(Rest).decode
brought_back_of: Callable[[str], BroughtBack] = msgspec.json.Decoder(BroughtBack).decode
due_of: Callable[[str], Due] = msgspec.json.Decoder(Due).decode
touched_of: Callable[[str], Touched] = msgspec.json.Decoder(Touched).decode
versions_of: Callable[[str], Versions] = msgspec.json.Decoder(Versions).decode
announced_of: Callable[[str], Announced] = msgspec.json.Decoder(Announced).decode
in_use_of: Callable[[str], InUse] = msgspec.json.Decoder(InUse).decode
flaw_of: Callable[[str], Flaw] = msgspec.json.Decoder(Flaw).decode
mended_of: Callable[[str], Mended] = msgspec.json.Decoder(Mended).decode
stray_of: Callable[[str], Stray] = msgspec.json.Decoder(Stray).decode
record_of: Callable[[str], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
_counts_of = msgspec.json.Decoder(Counts).decode
_attempt_row_of = msgspec.json.Decoder(AttemptRow).decode
_small_of = msgspec.json.Decoder(Small).decode


def upkeep_of(text: str) -> Upkeep:
    """Return what a round of upkeep did."""
    return Upkeep(**asdict(_counts_of(text)))


def attempt_of(text: str) -> Attempt:
    """Return a line of the attempt log."""
    return _attempt_row_of(text).line


def entry_of(text: str) -> Entry:
    """Return an entry."""
    return Entry(**asdict(_small_of(text)))
