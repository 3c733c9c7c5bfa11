"""Small values that are no jobs: schedules, settings, steps, figures, alerts, in whatever store.

An entry is a JSON text under a kind and a key. Stores know nothing of what it means. It has a
version that grows with every write, so that writers can say which one they have seen. It may
belong to a job, fall due, and expire.

What holds in every store:

* A write is compare-and-set, entry by entry: each is written as a whole or not at all, and one
  that is refused keeps no other from being written. An answered write is as durable as a put.
* An entry with an `owner` lives as long as that job does. It goes with the job to the finished
  ones or the dead letters, comes back when the job is revived, and is forgotten with it.
  It can be written while the job waits or runs, and read as long as the store has the job.
* A write under a fence is done only if the job still runs under that fence. Where the job
  and the entry are in one transaction that is one step. On Redis an entry without an owner is in
  a slot of its own: there the fence is checked a moment before.
* Fence and owner are independent: one says who may write, the other how long it is kept.
* Reads see what has not expired. `upkeep` removes the rest in bounded batches; what belongs to a
  job goes with that.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from fairlead.core.errors import ConfigError
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, LONGEST_ID, next_fence
from fairlead.core.text import brief

LONGEST_KIND = 64
"""How many characters the name of a kind may have."""
LONGEST_KEY = 512
"""How many bytes of UTF-8 a key may have."""
LONGEST_VALUE = 64 * 1024
"""How many bytes of UTF-8 a value may have."""
MOST_ENTRIES = 1_000
"""How many entries one call may read or write."""
MOST_BYTES = 1024**2
"""How many bytes of them one call may write."""


class Entry(msgspec.Struct, frozen=True):
    """A value as the store has it.

    Versions grow with the store's clock, so one that was removed and written anew has a later one:
    who expects what was there before is refused.
    """

    kind: str
    key: str
    value: str
    version: int
    owner: JobId | None = None
    due_at: int | None = None
    expires_at: int | None = None


class Change(msgspec.Struct, frozen=True):
    """What to write under a kind and a key; without a value, what is there is removed.

    `expect` is the version that must be there: 0 for none, None for any or none. Keys of one kind
    are apart from each other by owner: two jobs may each have an entry of the same key.
    """

    kind: str
    key: str
    value: str | None = None
    expect: int | None = None
    owner: JobId | None = None
    due_at: int | None = None
    expires_at: int | None = None

    def __post_init__(self) -> None:
        """Refuse what not every store can keep."""
        check_kind(self.kind)
        check_key(self.key)
        if self.value is not None and "\0" in self.value:
            raise ConfigError(
                f"the value of entry {brief(self.key)} has a NUL in it, which is no JSON"
            )
        if self.value is not None and len(encoded(self.value, "value")) > LONGEST_VALUE:
            raise ConfigError(
                f"the value of entry {brief(self.key)} is longer than {LONGEST_VALUE // 1024} KiB; "
                "keep it in a place of your own, and its name in the entry"
            )
        _check_owner(self.owner)
        for name in ("due_at", "expires_at"):
            at = getattr(self, name)
            if at is not None and not 0 <= at <= LATEST:
                raise ConfigError(f"{name} of entry {brief(self.key)} is no instant: {at}")


class Wanted(msgspec.Struct, frozen=True):
    """Which entries of a kind to read: those of an owner, or those of nobody.

    With `keys` those; else all whose key comes after `after`, byte by byte, and begins
    with `prefix`; with `due_before` only those that fall due before that instant. They come by
    key, those that fall due by that instant and then by key, `limit` at most.
    """

    kind: str
    owner: JobId | None = None
    keys: tuple[str, ...] | None = None
    prefix: str = ""
    after: str = ""
    due_before: int | None = None
    limit: int = MOST_ENTRIES

    def __post_init__(self) -> None:
        """Refuse what no store can answer."""
        check_kind(self.kind)
        _check_owner(self.owner)
        for key in self.keys or ():
            check_key(key)
        for text in (self.prefix, self.after):
            if text:
                check_key(text)
        if not 1 <= self.limit <= MOST_ENTRIES or len(self.keys or ()) > MOST_ENTRIES:
            raise ConfigError(f"one call reads 1 to {MOST_ENTRIES:,} entries; ask again for more")
        if self.due_before is not None and (self.keys is not None or self.prefix or self.after):
            raise ConfigError("ask for what is due, or for keys, not for both at once")


def check_kind(kind: str) -> None:
    """Refuse a kind that is no plain name."""
    plain = kind.replace("_", "").replace("-", "").replace(".", "")
    if not plain.isascii() or not plain.isalnum() or len(kind) > LONGEST_KIND:
        raise ConfigError(
            f"{brief(kind)} is no kind of entries: use 1 to {LONGEST_KIND} ASCII letters, digits, "
            "dots, dashes and underscores"
        )


def check_key(key: str) -> None:
    """Refuse a key that not every store can keep."""
    if not key or "\0" in key or len(encoded(key, "key")) > LONGEST_KEY:
        raise ConfigError(
            f"the key of an entry has 1 to {LONGEST_KEY} bytes, and none of them is NUL: "
            f"{brief(key)}"
        )


def _check_owner(owner: JobId | None) -> None:
    if owner is not None and not (0 < len(owner) <= LONGEST_ID and owner.isascii()):
        raise ConfigError(f"{brief(owner)} is no id of a job, so it cannot own an entry")


def encoded(text: str, what: str) -> bytes:
    """Return a text as bytes; one that has no UTF-8 form is refused."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"the {what} of an entry has half a character in it, and cannot be stored"
        ) from None


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse more changes than one call may make."""
    if len(changes) > MOST_ENTRIES:
        raise ConfigError(
            f"one call writes at most {MOST_ENTRIES:,} entries, not {len(changes):,}; "
            "write them in several calls"
        )
    size = sum(len((change.key + (change.value or "")).encode()) for change in changes)
    if size > MOST_BYTES:
        raise ConfigError(
            f"one call writes at most {MOST_BYTES // 1024**2} MiB of entries, not {size:,} bytes; "
            "write them in several calls"
        )


Name = tuple[str, JobId | None, str]
"""What an entry is known by: kind, owner and key."""


def name_of(each: Entry | Change) -> Name:
    """Return what an entry is known by."""
    return each.kind, each.owner, each.key


def is_there(entry: Entry, now: int) -> bool:
    """Say whether an entry has not expired."""
    return entry.expires_at is None or entry.expires_at > now


def change_all(
    changes: Iterable[Change],
    found: Mapping[Name, Entry],
    live: Collection[JobId],
    now: int,
    seen: dict[Name, int],
) -> tuple[list[int | None], dict[Name, Entry | None]]:
    """Return how changes are answered, and what has to be written then; None is to be removed.

    `found` are the entries that are there under the names of the changes, expired or not, and
    `live` the jobs that may own one. `seen` is the last version of each name in this instant,
    though it may be gone by now; it is kept up to date.
    """
    answers: list[int | None] = []
    written: dict[Name, Entry | None] = {}
    for change in changes:
        name = name_of(change)
        last = written[name] if name in written else found.get(name)
        old = last if last is not None and is_there(last, now) else None
        is_expected = change.expect in (None, old.version if old is not None else 0)
        if not is_expected or (change.owner is not None and change.owner not in live):
            answers.append(None)
            continue
        seen[name] = max(seen.get(name, 0), last.version if last is not None else 0)
        if change.value is not None:
            seen[name] = next_fence(seen[name], now)
        written[name] = _changed(change, seen[name])
        answers.append(0 if change.value is None else seen[name])
    return answers, written


def _changed(change: Change, version: int) -> Entry | None:
    if change.value is None:
        return None
    return Entry(
        kind=change.kind,
        key=change.key,
        value=change.value,
        version=version,
        owner=change.owner,
        due_at=change.due_at,
        expires_at=change.expires_at,
    )


def meant(wanted: Wanted, entries: Iterable[Entry], now: int) -> list[Entry]:
    """Return those of these entries that are wanted, in order."""
    found = [entry for entry in entries if is_there(entry, now) and _is_meant(entry, wanted)]
    by_due = wanted.due_before is not None
    found.sort(key=lambda each: (each.due_at if by_due else 0, each.key.encode()))
    return found[: wanted.limit]


def _is_meant(entry: Entry, wanted: Wanted) -> bool:
    if (entry.kind, entry.owner) != (wanted.kind, wanted.owner):
        return False
    if wanted.due_before is not None:
        return entry.due_at is not None and entry.due_at < wanted.due_before
    if wanted.keys is not None:
        return entry.key in wanted.keys
    return entry.key.startswith(wanted.prefix) and entry.key.encode() > wanted.after.encode()


def past_all(prefix: str) -> str | None:
    """Return the least text after all that begin with this one; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] < "\U0010ffff":
            following = ord(prefix[at]) + 1
            return prefix[:at] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
    return None


class Entries(ABC):
    """Small keyed values beside the jobs."""

    @abstractmethod
    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries, those that have not expired.

        What it reads follows from what it returns, however many entries of the kind there are.
        """

    @abstractmethod
    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there and its owner lives.

        Answers for each its new version, 0 for one that was removed or was not there to be
        removed, and None for one that was refused. Raises `LeaseLost` if a fence is given and its
        job does not run under it any more; then nothing was written. At most `MOST_ENTRIES`
        changes; of several under one key each sees what the one before left.
        """
