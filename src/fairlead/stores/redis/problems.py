"""What a server or the driver says when something is wrong, as one of our own errors."""

import re
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from fairlead.core.errors import (
    EnqueueError,
    FairleadError,
    StoreDenied,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    Unanswered,
)
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.functions import OPERATOR, ROLES

_MIGRATE = "let an administrator run `fairlead migrate up` once, with a URL of their own"
_REACH = "is the server running, and reachable from here? If it is slow, raise timeout= in the URL"
_PLAIN = (
    "this port does not speak TLS: name the server's TLS port (tls-port), or, only where nobody "
    "else is on the way, write redis:// instead of rediss://"
)
_REMEDIES: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError),
        "",
        "check user and password in the store's URL",
    ),
    (
        (exceptions.NoPermissionError,),
        r"function\|load",
        f"the server does not have the functions of this version yet: {_MIGRATE}",
    ),
    (
        (exceptions.NoPermissionError,),
        "",
        (
            "name a user in the store's URL who has the rights of {role}, as docs/redis.md "
            "lists them for this version (ACL SETUSER …)"
        ),
    ),
    ((exceptions.ReadOnlyError,), "", "this is a replica: name the primary in the store's URL"),
    ((exceptions.BusyLoadingError,), "", "the server reads its data from disk; wait a moment"),
    (
        (exceptions.ConnectionError, OSError),
        "wrong version number|wrong_version_number|record layer failure|unexpected eof",
        _PLAIN,
    ),
    (
        (exceptions.ConnectionError, OSError),
        "certificate",
        "name the authority that the server's certificate is from with ssl_ca_certs=",
    ),
    ((exceptions.ConnectionError, exceptions.TimeoutError, OSError), "", _REACH),
    (
        (exceptions.ResponseError,),
        "cluster support disabled",
        "this is one server: write redis:// in the store's URL",
    ),
    (
        (exceptions.ResponseError,),
        "hash to the same slot",
        "this is a node of a cluster: write redis+cluster:// in the store's URL",
    ),
    (
        (exceptions.MovedError,),
        "",
        "this is a node of a cluster: write redis+cluster:// in the store's URL",
    ),
    ((exceptions.ClusterDownError,), "", "look at CLUSTER INFO and CLUSTER NODES"),
    (
        (exceptions.ResponseError,),
        "misconf",
        "the server cannot write to its disk: look at its log, and make room",
    ),
    (
        (Exception,),
        "",
        "look at the server's log, and run `fairlead doctor`: it checks our keys",
    ),
)
"""What to do about an error, by its kind and a word in it; the first that fits."""


def typed(
    problem: Exception,
    address: Address,
    patience: float,
    *,
    asked: bool = False,
    command: Sequence[Any] = (),
) -> FairleadError:
    """Return one of our own errors for one of the driver's to a command; `asked` if a node was."""
    if isinstance(problem, exceptions.OutOfMemoryError):
        return StoreFull(
            address.url,
            "the server is at its maxmemory, so no job is accepted; those it has go on, and make "
            "room as they are forgotten. Raise maxmemory (CONFIG SET maxmemory …)",
        )
    words = str(problem).strip() or type(problem).__name__
    if _is_denial(problem, words):
        problem, words = exceptions.NoPermissionError(words), words.partition(_PLACE)[0]
    if words.startswith(_REFUSED):
        told = words.removeprefix(_REFUSED).partition(" script: ")[0]
        return EnqueueError(f"the store refuses this job: {told}")
    if type(problem) is exceptions.ResponseError and _is_damage(words):
        return StoreRefused(address.url, words.rstrip("."))
    if isinstance(problem, TimeoutError | exceptions.TimeoutError):
        words = f"no answer within {round(patience, 2):g} s"
        if address.tls:
            return StoreUnavailable(address.url, f"{words}; {_REACH}; or {_PLAIN}")
    remedy = next(
        remedy
        for kinds, word, remedy in _REMEDIES
        if isinstance(problem, kinds) and re.search(word, words.lower())
    )
    kind = StoreUnavailable
    if asked and _is_silence(problem):
        kind = Unanswered
    elif isinstance(problem, exceptions.NoPermissionError):
        kind = StoreDenied
    return kind(address.url, f"{words.rstrip('.')}; {remedy.format(role=_role_for(command))}")


def _role_for(command: Sequence[Any]) -> str:
    """Say which users may do what a command does."""
    role = next((ROLES[word] for word in command[:3] if word in ROLES), None)
    return f"{'an' if role == OPERATOR else 'a'} {role}" if role else "a role that may do this"


def _is_denial(problem: Exception, words: str) -> bool:
    """Say whether the user may not do this, or what a function does for it."""
    return isinstance(problem, exceptions.NoPermissionError) or words.startswith(
        ("The user executing the script can't", "ACL failure in script:")
    )


def _is_silence(problem: Exception) -> bool:
    """Say whether a node may have done what it was asked, and did not come to say so."""
    if isinstance(problem, exceptions.BusyLoadingError | exceptions.AuthenticationError):
        return False
    return isinstance(problem, _SILENCES)


_SILENCES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
)
"""Also an answer that nobody can read."""


_PLACE = " script: fairlead_"
"""What stands before the place in a function where something went wrong."""
_REFUSED = "REFUSED "
"""How our own functions begin what they say of jobs that nobody may put."""


def _is_damage(words: str) -> bool:
    """Say whether a command or a function stumbled over what is stored, and would do so again."""
    if words.startswith("WRONGTYPE"):
        return True
    blameless = ("MISCONF", "NOREPLICAS", "Error running", "Script killed")
    return bool(re.search(r"\buser_function\b", words)) and not words.startswith(blameless)
