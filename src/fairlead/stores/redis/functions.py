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

from fairlead.stores.redis.keys import HASHES, LINE, PARTS

_OF_A_VERB: dict[str, tuple[str, ...]] = {
    "announce": (),
    "count": (),
    "here": (),
    "register": (),
    "put": ("bodies", "ready", "due", "expiring", "settings"),
    "extend": ("runs", "leases", "lost"),
    "records": ("bodies", "runs", "errors", "ends", "ready", "due"),
    "glance": ("ready", "due", "leases", "lost", "unknown", "expiring", "settings"),
    **dict.fromkeys(("cancel", "delete", "edit", "note", "pause", "revive"), PARTS),
}
"""The keys of a queue that a function gets, if they are others than those of the line.

A server lets a user call a function only if the user may touch all keys that it gets. So producers
can do with few keys, and only those who act need the ones of the audit log. Leases are renewed
as long as their own keys are sound.
"""
_READ_ONLY = "no-writes"
_PROBES = {
    **{part: f"call('ZSCORE', {part}, '')\n" for part in PARTS},
    **{part: f"call('HEXISTS', {part}, '')\n" for part in HASHES},
    "log": "call('LLEN', log)\n",
}
"""What raises if a key is of another type than ours.

What a function has written before it fails stays written: a job that it took from one key would
be lost if it could not be added to the other. So each that writes asks for all its keys first; a
put, only for those that it is to write.
"""
_ASKS_ITSELF = ("put",)
_READS_FIRST = {
    "claim": ("due", "leases", "expiring", "unknown", "settings", "ready", "lost"),
    "settle": ("runs", "settings", "log"),
}
"""Keys of which a function reads something before it writes anything, so that it need not ask."""


class Function(msgspec.Struct, frozen=True):
    """A verb: its name on the server, the command that calls it, and the keys that it gets."""

    name: str
    command: str
    parts: tuple[str, ...]


class Library(msgspec.Struct, frozen=True):
    """All functions, and the code that a server loads."""

    name: str
    code: str
    functions: Mapping[str, Function]


def _read() -> Library:
    folder = files(__package__) / "lua"
    texts = {
        each.name.removesuffix(".lua"): each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith(".lua")
    }
    shared = "".join(texts.pop(name) for name in ("clock", "keys", "moves", "checks"))
    body = shared + "".join(_registered(verb, text) for verb, text in sorted(texts.items()))
    name = f"fairlead_{sha256(body.encode()).hexdigest()[:12]}"
    functions = {
        verb: Function(
            f"{name}_{verb}",
            "FCALL_RO" if _READ_ONLY in _flags(text) else "FCALL",
            _parts_of(verb),
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
    keys = ", ".join(f"KEYS[{parts.index(part) + 1}]" if part in parts else "nil" for part in PARTS)
    flags = ", ".join(f"'{flag}'" for flag in _flags(text))
    return (
        f"\nredis.register_function{{ function_name = LIBRARY .. '_{verb}', "
        f"flags = {{ {flags} }}, callback = function(KEYS, ARGV)\n"
        f"null, call = cjson.null, redis.call\n{', '.join(PARTS)} = {keys}\n"
        "final.done, final.cancelled, final.dead = done, cancelled, dead\n"
        f"{_probes(verb, text)}"
        f"{text.partition(chr(10))[2]}end }}\n"
    )


def _probes(verb: str, text: str) -> str:
    if verb in _ASKS_ITSELF or _READ_ONLY in _flags(text):
        return ""
    read = _READS_FIRST.get(verb, ())
    return "".join(_PROBES[part] for part in _parts_of(verb) if part not in read)


LIBRARY = _read()
"""What this program needs on a server."""
FUNCTIONS = LIBRARY.functions
"""Its functions, by verb."""
