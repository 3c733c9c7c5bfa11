"""Check the tables against themselves, and mend them (I3, I22).

What counts as damage is said once, by the function `flaws` in the database; `repair` there puts
each of them right, or moves it out, a bounded number at a time.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fairlead.core.acts import Action
from fairlead.core.admin import NOT_MENDED, Finding
from fairlead.stores.postgres.lane import Lane
from fairlead.stores.postgres.replies import flaw_of, mended_of
from fairlead.stores.postgres.statements import statements

BATCH = 500
"""How many one step mends."""
MOST_TOLD = 1_000
"""How many of each kind an audit names."""
_MOST_ROUNDS = 10

_REMEDY = "run `fairlead doctor --repair`"
_LONGEST = 80


class Words(NamedTuple):
    """What is said of a kind of damage: when it is found, and when it was mended."""

    found: str
    mended: str


_CLAMPED = "wrote the nearest numbers that can be into"
_WORDS: Mapping[str, Words] = {
    "live and finished": Words(
        "job {} is live and finished at once",
        "moved the live one of the two jobs {} to the dead letters, under a new id",
    ),
    "live and dead": Words(
        "job {} is live and a dead letter at once", "gave the dead letter {} a new id"
    ),
    "finished and dead": Words(
        "job {} is finished and a dead letter at once", "gave the dead letter {} a new id"
    ),
    "finished twice": Words(
        "job {} is finished twice", "removed the older of the two ends of job {}"
    ),
    "unsound": Words(
        "job {} has a name or a number that cannot be, or runs without a worker",
        "made a dead letter of job {}, or wrote anew who runs it",
    ),
    "half running": Words(
        "job {} does not agree with itself about running", "wrote that job {} waits"
    ),
    "running and parked": Words(
        "job {} runs and waits for its time at once", "put job {} into the order"
    ),
    "no fence": Words("job {} runs without a fence", "gave job {} a fence"),
    "long lease": Words(
        "job {} has a lease of more than a year", "ended the lease of job {}; it runs again"
    ),
    "no place": Words("job {} is parked for no reason", "put job {} into the order"),
    "park key": Words(
        "job {} is parked for something else than it says", "wrote anew for what job {} waits"
    ),
    "early": Words("job {} stands in the order before it is due", "parked job {} until it is due"),
    "shared deaths": Words(
        "job {} cannot have shared so many deaths of processes", "lets job {} run alone"
    ),
    "level": Words("job {} has a level that cannot be", "wrote the first level into job {}"),
    "head start": Words("job {} has a head start beyond a day", "took its head start from job {}"),
    "errors": Words(
        "job {} has a history that cannot be read", "kept what can be read of job {}'s history"
    ),
    "options": Words(
        "job {} has options that cannot be read", "made a dead letter of job {}, with its options"
    ),
    "unsound dead": Words(
        "dead letter {} has a name or a number that cannot be", f"{_CLAMPED} dead letter {{}}"
    ),
    "no reason": Words("dead letter {} has no reason", "wrote `unreadable` into dead letter {}"),
    "dead errors": Words(
        "dead letter {} has a history that cannot be read",
        "kept what can be read of dead letter {}'s history",
    ),
    "dead options": Words(
        "dead letter {} has options that cannot be read", "removed the options of dead letter {}"
    ),
    "unsound finished": Words(
        "finished job {} has a name or a number that cannot be", f"{_CLAMPED} finished job {{}}"
    ),
    "not final": Words(
        "finished job {} is in a state that is not final", "wrote that job {} was cancelled"
    ),
    "finished errors": Words(
        "finished job {} has a history that cannot be read",
        "kept what can be read of finished job {}'s history",
    ),
    "finished options": Words(
        "finished job {} has options that cannot be read", "removed the options of finished job {}"
    ),
    "dead entries": Words(
        "dead letter {} does not say that it has entries", "wrote that dead letter {} has entries"
    ),
    "finished entries": Words(
        "finished job {} does not say that it has entries",
        "wrote that finished job {} has entries",
    ),
    "entry": Words("entry {} cannot be read", "removed entry {}"),
    "entry owner": Words(
        "entry {} belongs to a job that there is not", "removed entry {}, which nobody owns"
    ),
    "attached": Words(
        "job {} cannot have what it says that it has", "wrote that job {} has nothing besides"
    ),
    "has entries": Words(
        "job {} does not say that it has entries", "wrote that job {} has entries"
    ),
    "one fence twice": Words(
        "job {} has two lines for one fence in the attempt log",
        "removed the later of job {}'s two lines in the attempt log",
    ),
    "unsound attempt": Words(
        "a line of job {} in the attempt log has a name or a number that cannot be",
        f"{_CLAMPED} job {{}}'s lines of the attempt log",
    ),
    "mark": Words(
        "the mark of queue {} is a place that cannot be", "moved queue {}'s mark to the beginning"
    ),
    "worker": Words(
        "what worker {} announced cannot be read",
        "removed worker {}; it announces itself again if it lives",
    ),
    "paused": Words("queue {} is paused, and no queue has such a name", "removed that pause of {}"),
    "audit": Words(
        "line {} of the audit log has a number that cannot be",
        f"{_CLAMPED} line {{}} of the audit log",
    ),
    "part": Words(
        "table {} does not have the name of its day", "gave table {} the name of its day"
    ),
    "day": Words(
        "day {} is listed, but lacks a table",
        "made the missing table of day {}, or removed it from the list",
    ),
    "no day": Words("table {} belongs to no day of the list", "added the day of table {}"),
    "retention": Words(
        "the retention{} cannot be: until when jobs are forgotten, or how long they are kept",
        "wrote that nothing is forgotten{} that is still kept",
    ),
    "step": Words("step {} of the schema cannot be", "removed or dated step {} of the schema"),
    "no step": Words(
        "step {} of the schema is not listed as applied", "listed step {} of the schema"
    ),
    "verbs": Words(
        "which functions the schema has{} is not known",
        "wrote that they are of the first revision{}",
    ),
}


def _words(what: str) -> Words:
    """Return what is said of a kind of damage; a newer program's functions may know more kinds."""
    return _WORDS.get(what) or Words(f"{what}: {{}}", f"mended {what}: {{}}")


def _told(words: str, whose: str) -> str:
    return words.format(whose if len(whose) <= _LONGEST else f"{whose[:_LONGEST]}…")


async def audit(lane: Lane, schema: str, at: int | None, level: int) -> list[Finding]:
    """Return every damage, by one state; of each kind the first, and how many more."""
    text = msgspec.json.encode({"at": at, "level": level, "most": MOST_TOLD}).decode()
    rows = [flaw_of(told) for (told,) in await lane.ask(statements(schema)["flaws"], text)]
    findings = [Finding(_told(_words(f.what).found, f.whose), _REMEDY) for f in rows]
    for what, number in {f.what: f.number for f in rows}.items():
        if number > MOST_TOLD:
            more = f"{number - MOST_TOLD:,} more: {_told(_words(what).found, '…')}"
            findings.append(Finding(more, _REMEDY))
    return findings


def as_told(by: Action) -> tuple[str, str, str, str]:
    """Return an action in the order in which verbs read it."""
    return by.id, by.who, by.verb, by.target


async def repair(lane: Lane, schema: str, at: int | None, level: int, by: Action) -> list[str]:
    """Mend what can be mended; says what was done, and what could not be, and why.

    What is mended may show another damage, so it goes through all again until there is
    nothing new.
    """
    doc = {"at": at, "level": level, "batch": BATCH, "by": as_told(by)}
    done: dict[tuple[str, str], None] = {}
    met: dict[tuple[str, str], str | None] = {}
    for _ in range(_MOST_ROUNDS):
        met = await _round(lane, schema, doc)
        mended = [flaw for flaw, why in met.items() if why is None and flaw not in done]
        done |= dict.fromkeys(mended)
        if not mended:
            break
    return [
        *(_told(_words(what).mended, whose) for what, whose in done),
        *(
            f"{NOT_MENDED} this: {_told(_words(what).found, whose)}; {why}"
            for (what, whose), why in met.items()
            if why is not None
        ),
    ]


async def _round(
    lane: Lane, schema: str, doc: Mapping[str, object]
) -> dict[tuple[str, str], str | None]:
    """Go once through all there is, step by step; returns what was met, and why it is left."""
    met: dict[tuple[str, str], str | None] = {}
    kind: int | None = 1
    start = ""
    while kind is not None:
        text = msgspec.json.encode({**doc, "kind": kind, "start": start}).decode()
        [(answer,)] = await lane.ask(statements(schema)["repair"], text)
        step = mended_of(answer)
        kind, start = step.kind, step.start
        met |= {(each.what, each.whose): each.why for each in step.met}
    return met
