"""What somebody with the rights of one role can do to a PostgreSQL store, by its verbs alone.

A role touches no table, so its way to do damage is the document it hands to a verb. Documents
that the program itself sends are recorded; each round changes one value in one of them and sends
it as that role, about a job that is there. What the database refuses harms nobody.

What a role may do anyway is no damage: a worker may hold jobs for as long as it likes, so leases are
short unless they are what is changed, and an operator may delete jobs.
"""

import asyncio
import json
import re
from collections.abc import Collection, Sequence
from random import Random
from typing import Any, NamedTuple

import psycopg
import pytest

from fairlead.core.ids import JobId
from fairlead.stores.postgres.lane import Lane
from tests.fuzz.documents import VALUES, Path, changed, places
from tests.fuzz.rounds import exercise
from tests.fuzz.victim import Damage, Victim
from tests.words import new_id

VERBS = {
    "producer": ("put",),
    "worker": ("claim", "extend", "settle", "announce", "upkeep"),
    "operator": ("act", "noted", "upkeep", "repair"),
}
# JSON has neither: the document would be none, whatever is changed in it.
_NOT_JSON = ("infinite", "bytes")
KINDS = {kind: value for kind, value in VALUES.items() if kind not in _NOT_JSON}
_VERB = re.compile(r"\.(\w+)\(%s\)")
_ID = re.compile(r'"[0-9a-f]{8}-[0-9a-f-]{27}"')


class Call(NamedTuple):
    """A verb, and a document that the program handed to it."""

    verb: str
    document: dict[str, Any]


def recorded(url: str) -> list[Call]:
    """Let the program do everything once on an empty store; returns what it said to the server."""
    calls: list[Call] = []
    real = Lane.ask

    async def ask(lane: Lane, statement: Any, *parameters: Any) -> Any:
        verb = _VERB.search(str(statement))
        if verb and len(parameters) == 1 and str(parameters[0]).startswith("{"):
            calls.append(Call(verb[1], json.loads(parameters[0])))
        return await real(lane, statement, *parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "ask", ask)
        asyncio.run(exercise(url))
    return calls


def _name(call: Call, path: Path) -> str:
    """Return what a place is called: of jobs, runs and queues that are alike, one is enough."""
    is_own = call.verb == "act" and path[0] not in ("at", "by", "tell")
    verb = f"act {call.document['verb']}" if is_own else call.verb
    lists = {1: "*"} if path[0] in ("kinds", "runs", "queues", "ids") else {}
    if call.verb in ("put", "settle"):
        lists |= {3: "*"}
    return ".".join([verb, *(lists.get(at, str(step)) for at, step in enumerate(path))])


class RoleVictim(Victim):
    """One role of a schema, with the program's own words in its mouth."""

    at_once = 10  # Most of it is refused.

    def __init__(
        self, kind: str, schema: str, connection: psycopg.Connection[Any], calls: Sequence[Call]
    ) -> None:
        self._kind = kind
        self._schema = schema
        self._connection = connection
        self._calls: dict[str, tuple[Call, Path]] = {}
        for call in calls:
            if call.verb in VERBS[kind]:
                for path in places(call.document):
                    self._calls.setdefault(_name(call, path), (call, path))

    @property
    def damages(self) -> Sequence[Damage]:
        """Each value of each document, with each thing that can be written there instead."""
        return [Damage(field, kind) for field in sorted(self._calls) for kind in KINDS]

    def may_remove(self, damages: Collection[Damage]) -> bool:
        """Say whether jobs may be gone: an operator has the right, and it is in the audit log."""
        return self._kind == "operator"

    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Say it to the server, about this job where a job is named."""
        call, path = self._calls[damage.field]
        if (call.verb, path) == ("claim", ("lease",)):
            return None  # A worker may keep jobs for as long as it likes.
        if call.verb == "put" and random.random() < 0.7:
            job_id = new_id("mail")
        document = changed(self._about(call, job_id), path, KINDS[damage.kind])
        try:
            self._say(call.verb, json.dumps(document))
        except psycopg.Error:
            return None
        return f"{damage.field} is {damage.kind}"

    def _about(self, call: Call, job_id: JobId) -> Any:
        """Return the document with this job in it, and with its fence, which a worker can know."""
        text = _ID.sub(json.dumps(job_id), json.dumps(call.document))
        document = json.loads(text)
        if "lease" in document:
            document["lease"] = 1
        for run in (*document.get("runs", ()), *_runs_of(call.verb, document)):
            found = self._say("find", json.dumps({"id": job_id}))
            run[1] = json.loads(found[0][0])["fence"] if found else 1
        return document

    def _say(self, verb: str, text: str) -> list[tuple[Any, ...]]:
        statement = f"SELECT {self._schema}.{verb}(%s)"
        return self._connection.execute(statement, [text]).fetchall()


def _runs_of(verb: str, document: dict[str, Any]) -> list[Any]:
    return [run for kind in document["kinds"] for run in kind[11]] if verb == "settle" else []
