"""The functions that a server runs for us: a Lua file for each verb, all of them in one library.

A server keeps a library with its data. So somebody who may load code does it once, and programs
need no right to bring code of their own. A library is named after what is in it: programs of
several versions share a server, and each calls its own functions.
"""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

import msgspec

from fairlead.stores.redis.keys import HASHES, JOBS, LINE, PARTS, SLOT
from fairlead.stores.redis.layout import in_lua

_OF_ENTRIES = ("bodies", "standings", "ready", "due", "entries", "owned")
_OF_A_VERB: dict[str, tuple[str, ...]] = {
    "announce": (),
    "count": (),
    "heads": (),
    "here": (),
    "register": (),
    "put": ("bodies", "ready", "due", "expiring", "settings"),
    "extend": ("standings", "leases", "lost"),
    "records": ("bodies", "standings", "errors", "ready", "due"),
    "list": ("ready", "due", "leases", "lost", "done", "cancelled", "dead"),
    **dict.fromkeys(("kinds", "lost_parked"), ("parked",)),
    "glance": ("bodies", "ready", "due", "leases", "lost", "parked", "expiring", "paused"),
    **dict.fromkeys(("write_entries", "check_owned", "mend_owned"), _OF_ENTRIES),
    "read_owned": ("entries", "owned"),
    **dict.fromkeys(("check", "repair", "upkeep"), JOBS),
    **dict.fromkeys(("cancel", "edit", "note", "pause", "revive"), (*LINE, "acts", "acted")),
    "delete": PARTS,
    **dict.fromkeys(
        ("read_loose", "write_loose", "prune_loose", "check_loose", "mend_loose"), SLOT
    ),
}
"""The keys of a queue or of a slot that a function gets, if they are others than those of the line.

A server lets a user call a function only if the user may touch all keys that it gets. So producers
can do with few keys, and only those who act need the ones of the audit log. Leases are renewed
as long as their own keys are sound.
"""
_OF_ALL = ("heads",)
"""Functions that get one key of each of many queues, and answer once for all of them."""
_READ_ONLY = "no-writes"
SHARED = (
    *("clock", "calls", "keys", "arrays", "sound", "line", "tasks", "moves", "acts"),
    *("accepting", "orders", "settling", "entries", "checks", "mending"),
)
"""The files that are no verbs, in an order in which each finds what it needs."""
_NAMED = (*PARTS, *SLOT)
"""All keys that functions have names for."""
_PROBES = {
    **{part: f"call('ZSCORE', {part}, '')\n" for part in _NAMED},
    **{part: f"call('HEXISTS', {part}, '')\n" for part in (*HASHES, "loose")},
    "log": "call('LLEN', log)\n",
}
"""What raises if a key is of another type than ours.

What a function has written before it fails stays written: a job that it took from one key would
be lost if it could not be added to the other. So each that writes asks for all its keys first.
"""
_ASKS_ITSELF = ("put", "claim", "settle")
"""Functions that ask only for the keys that they are to write."""
_ASKS_FOR_ALL = ("claim", "settle")
"""Those of them that have `ask_for_all` for the rest; a call asks once for each queue."""
_TO_RUN_JOBS = (
    *("EXISTS", "HDEL", "HEXISTS", "HGET", "HLEN", "HMGET", "HSET", "LINDEX", "LLEN", "LSET"),
    *("LTRIM", "RPUSH", "ZADD", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE"),
    *("ZREM", "ZSCORE"),
)
_NEEDS = {"claim": _TO_RUN_JOBS, "settle": _TO_RUN_JOBS}
"""The commands that a user must be allowed to run, so that nothing is left half done.

Whoever claims must also be able to renew a lease, to settle, and to do the upkeep.
"""
PRODUCER, WORKER, OPERATOR = "producer", "worker", "operator"
_ROLES = {
    **dict.fromkeys(("put", "records", "here", "register"), PRODUCER),
    **dict.fromkeys(("claim", "extend", "settle", "announce", "upkeep"), WORKER),
    **dict.fromkeys(("park", "bring_back", "refuse", "reopen", "glance"), WORKER),
    **dict.fromkeys(("write_entries", "write_loose", "read_loose", "prune_loose"), WORKER),
    **dict.fromkeys(("read_owned", "lost_parked"), WORKER),
}


class Function(msgspec.Struct, frozen=True):
    """A verb: its name on the server, the command that calls it, and the keys that it gets.

    `role` is the least that a user needs to call it (docs/redis.md).
    """

    name: str
    command: str
    parts: tuple[str, ...]
    role: str


class Library(msgspec.Struct, frozen=True):
    """All functions, and the code that a server loads."""

    name: str
    code: str
    functions: Mapping[str, Function]


def _read() -> Library:
    folder = files(__package__) / "lua"
    texts = {
        each.name.removesuffix(".lua"): in_lua(each.read_text(encoding="utf-8"))
        for each in folder.iterdir()
        if each.name.endswith(".lua")
    }
    shared = "".join(map(texts.pop, SHARED))
    body = shared + "".join(_registered(verb, text) for verb, text in sorted(texts.items()))
    name = f"fairlead_{sha256(body.encode()).hexdigest()[:12]}"
    functions = {
        verb: Function(
            f"{name}_{verb}",
            "FCALL_RO" if _READ_ONLY in _flags(text) else "FCALL",
            _parts_of(verb),
            _ROLES.get(verb, OPERATOR),
        )
        for verb, text in texts.items()
    }
    code = f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}"
    return Library(name, code, MappingProxyType(functions))


def _parts_of(verb: str) -> tuple[str, ...]:
    """Return which keys of a queue a verb gets."""
    return _OF_A_VERB.get(verb, LINE)


def _flags(text: str) -> list[str]:
    """Return what the first line of a verb's file says of it."""
    return text.partition("\n")[0].partition("flags=")[2].split()


def _registered(verb: str, text: str) -> str:
    """Return the code that makes a function of a verb's file, with names for the keys it gets.

    Those that it does not get have none: whoever uses one all the same must fail, and not touch
    the key of the call before.
    """
    parts = _parts_of(verb)
    keys = ", ".join(
        f"KEYS[at + {parts.index(part) + 1}]" if part in parts else "nil" for part in _NAMED
    )
    flags = ", ".join(f"'{flag}'" for flag in _flags(text))
    needs = ", ".join(f"'{command}'" for command in _NEEDS.get(verb, ()))
    probes = "".join(_PROBES[part] for part in parts)
    of_each = "nil" if verb in _OF_ALL else len(parts) or 1
    asks_first = verb not in _ASKS_ITSELF and _READ_ONLY not in _flags(text)
    return (
        f"\ndo -- {verb}\n"
        f"{_asking_for_all(probes) if verb in _ASKS_FOR_ALL else ''}"
        "local function run(KEYS, at, ARGV)\n"
        f"null, call = cjson.null, redis.call\n{', '.join(_NAMED)} = {keys}\n"
        "final.done, final.cancelled, final.dead = done, cancelled, dead\n"
        f"{'has_asked, ask_for_all = false, ask' if verb in _ASKS_FOR_ALL else ''}\n"
        f"{probes if asks_first else ''}"
        f"{text.partition(chr(10))[2]}end\n"
        f"redis.register_function{{ function_name = LIBRARY .. '_{verb}', flags = {{ {flags} }}, "
        f"callback = each(run, {of_each}, {{ {needs} }}) }}\nend\n"
    )


def _asking_for_all(probes: str) -> str:
    return (
        "local has_asked\nlocal function ask()\nif has_asked then return end\n"
        f"{probes}has_asked = true\nend\n"
    )


LIBRARY = _read()
"""What this program needs on a server."""
FUNCTIONS = LIBRARY.functions
"""Its functions, by verb."""
ROLES = {function.name: function.role for function in FUNCTIONS.values()}
"""Who may call a function, by its name on the server."""
