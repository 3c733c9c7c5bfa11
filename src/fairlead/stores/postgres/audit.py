"""Check the tables against themselves, and mend them (I3, I22).

What counts as damage is said once, by the function `flaws` in the database; `repair` there puts
each of them right, or moves it out, a bounded number at a time.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fairlead.core.admin import Action, Finding
from fairlead.stores.postgres.lane import Lane
from fairlead.stores.postgres.statements import statements

BATCH = 200
"""How many of each kind one step mends."""

_REMEDY = "run `fairlead doctor --repair`"
_LONGEST = 80

_decode = msgspec.json.Decoder(list[tuple[str, str, str | None]]).decode


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
    "no place": Words("job {} is parked for no known reason", "put job {} into the order"),
    "early": Words("job {} stands in the order before it is due", "parked job {} until it is due"),
    "head start": Words("job {} has a head start beyond a day", "took its head start from job {}"),
    "errors": Words(
        "job {} has a history that cannot be read", "kept what can be read of job {}'s history"
    ),
    "unsound dead": Words(
        "dead letter {} has a name or a number that cannot be", f"{_CLAMPED} dead letter {{}}"
    ),
    "no reason": Words("dead letter {} has no reason", "wrote `unreadable` into dead letter {}"),
    "dead errors": Words(
        "dead letter {} has a history that cannot be read",
        "kept what can be read of dead letter {}'s history",
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
    "day": Words("day {} is listed, but has no tables", "removed day {} from the list"),
    "no day": Words("table {} belongs to no day of the list", "added the day of table {}"),
    "retention": Words(
        "the retention{} cannot be: until when jobs are forgotten, or how long they are kept",
        "wrote that nothing is forgotten{} that is still kept",
    ),
    "step": Words("step {} of the schema cannot be", "removed or dated step {} of the schema"),
    "no step": Words(
        "step {} of the schema is not listed as applied", "listed step {} of the schema"
    ),
}


def _told(words: str, whose: str) -> str:
    return words.format(whose if len(whose) <= _LONGEST else f"{whose[:_LONGEST]}…")


async def audit(lane: Lane, schema: str, at: int | None) -> list[Finding]:
    """Return every damage, by one state of the tables."""
    rows = await lane.ask(statements(schema)["flaws"], at)
    return [Finding(_told(_WORDS[what].found, whose), _REMEDY) for what, whose in rows]


async def repair(lane: Lane, schema: str, at: int | None, by: Action) -> list[str]:
    """Mend step by step until nothing is left that can be mended; says what was done."""
    doc = {"at": at, "batch": BATCH, "by": msgspec.structs.astuple(by)}
    text = msgspec.json.encode(doc).decode()
    done: list[str] = []
    before: list[tuple[str, str, str | None]] = []
    while True:
        [(answer,)] = await lane.ask(statements(schema)["repair"], text)
        met = _decode(answer)
        if met in ([], before):
            return done
        done += [_told(_WORDS[what].mended, whose) for what, whose, why in met if why is None]
        before = met
