"""What the server or the driver says when something is wrong, as one of our own errors."""

import re

import psycopg
from psycopg import errors

from fairlead.core.errors import (
    ConfigError,
    EnqueueError,
    FairleadError,
    SchemaOutdated,
    StoreDenied,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    Unanswered,
)
from fairlead.stores.postgres.address import Address, told
from fairlead.stores.postgres.statements import migrations


def typed(problem: psycopg.Error, address: Address, *, asked: bool = False) -> FairleadError:
    """Return one of our own errors for one of the driver's; `asked` if the server was."""
    match problem:
        case _ if problem.sqlstate in OURS:
            return refusal(problem.sqlstate, told(problem))
        case psycopg.DataError() if problem.sqlstate in _OF_THE_CALLER:
            return ConfigError(
                f"PostgreSQL cannot hold this: {told(problem)}; it takes any text but the "
                "character NUL"
            )
        case errors.InsufficientPrivilege():
            return StoreDenied(address.url, _denied(told(problem), address))
        case errors.UndefinedTable() | errors.UndefinedFunction() | errors.InvalidSchemaName():
            text = (
                f"{told(problem)}; run `fairlead migrate up` as the owner of the database; if it "
                "has nothing to do, `fairlead doctor` names what somebody dropped"
            )
        case errors.DiskFull():
            return StoreFull(address.url, f"the server has no room: {told(problem)}")
        case errors.OutOfMemory() | errors.TooManyConnections():
            text = f"the server has no room: {told(problem)}"
        case _ if _is_refusal(problem):
            return StoreRefused(address.url, told(problem))
        case psycopg.OperationalError() | psycopg.InterfaceError():
            text = f"{told(problem)}; {_remedy(told(problem))}"
        case _:
            text = told(problem)
    kind = Unanswered if asked and _is_silence(problem) else StoreUnavailable
    return kind(address.url, text)


def _is_silence(problem: psycopg.Error) -> bool:
    """Say whether the server may have committed, and did not come to say so.

    A connection ended. Any other error of the server's says that the statement was undone.
    """
    ended = isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError)
    return ended and (problem.sqlstate or "08").startswith(("08", "57P"))


OURS = ("JQ001", "JQ002", "JQ003")
"""What our own functions refuse: something that is done, a job that is put, or a program."""


def refusal(code: str | None, words: str) -> FairleadError:
    """Return what our own functions refuse, in their words, as an error of the caller's."""
    if code == "JQ002":
        return EnqueueError(f"the database refuses this job: {words}")
    if code == "JQ003" and (step := re.search(r"at step (\d+)", words)):
        return SchemaOutdated(int(step[1]), migrations()[-1].number)
    return ConfigError(words)


_OF_THE_CALLER = (None, "22021", "22P05")
"""What the driver says, and the server, of a text with a character that it cannot hold."""

_REFUSALS = frozenset(
    ("0A", "21", "22", "23", "27", "2F", "38", "39", "42", "44", "54", "P0", "XX")
)
"""Classes of errors that the same question meets again: a value, a constraint, a limit."""


def _is_refusal(problem: psycopg.Error) -> bool:
    """Say whether the server answered, and will answer the same again."""
    return (problem.sqlstate or "")[:2] in _REFUSALS


_KINDS = (
    dict.fromkeys(("put", "find", "attempts", "due", "migration", "verbs"), "producer")
    | dict.fromkeys(
        (
            "claim",
            "extend",
            "settle",
            "held",
            "announce",
            "live_workers",
            "upkeep",
            "read_entries",
            "write_entries",
        ),
        "worker",
    )
    | {"moment": "tester"}
)
"""The least kind of role that may call a verb, by what `allow.sql` gives; else an operator."""


def _denied(words: str, address: Address) -> str:
    """Say who can let this user do what was denied; whoever lacks the schema chooses.

    A program does not become an operator, who may delete everybody's jobs: people use another URL.
    What only an owner may do is no verb of ours: no role would help, and none shall be given.
    """
    if not words.startswith("permission denied"):
        return words
    who = str(address.parameters.get("user") or "role").replace("'", "''")
    denied = re.search(r"(?:function|table|view|relation) (\w+)", words)
    kind = _KINDS.get(denied[1], "operator") if denied else "producer"
    by_owner = f"let the owner of schema {address.schema} run SELECT {address.schema}.allow"
    if kind == "operator":
        return (
            f"{words}; this is for operators: use the URL of one (--url, $FAIRLEAD_URL); to make "
            f"one, {by_owner}('SOMEBODY', 'operator')"
        )
    others = "" if denied else " if it enqueues, 'worker' if it runs jobs, 'operator' for people"
    return f"{words}; {by_owner}('{who}', '{kind}'){others}"


def _remedy(words: str) -> str:
    """Say what to do when a connection fails; the server's words are all there is to go by."""
    if "lock timeout" in words:
        return (
            "a transaction that is still open has put the same job or locked it, or locks a table "
            "of ours; keep blocks of job.commit() short, or look for it in pg_stat_activity"
        )
    if "password" in words or "authentication" in words or "role" in words:
        return "check user and password in the store's URL"
    if "database" in words and "does not exist" in words:
        return "create it, or name another in the store's URL"
    if "does not support SSL" in words:
        return (
            "switch TLS on there (ssl = on): a server elsewhere must prove who it is; only where "
            "nobody else is on the way, write sslmode=disable in the store's URL"
        )
    if "certificate" in words or "SSL" in words:
        return (
            "a server elsewhere must prove who it is (sslmode=verify-full); name its authority "
            "with sslrootcert= in the store's URL"
        )
    return "is the server running, and reachable from here?"


def silent(address: Address, patience: float, *, asked: bool) -> StoreUnavailable:
    """Return the error for a server that says nothing."""
    kind = Unanswered if asked else StoreUnavailable
    return kind(
        address.url,
        f"no answer within {round(patience, 2):g} s; look in pg_stat_activity for what it waits "
        "for, or raise timeout= in the store's URL",
    )


def broke(problem: psycopg.Error) -> bool:
    """Say whether the connection is of no use after this."""
    broken = isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError)
    return broken and not _is_refusal(problem)
