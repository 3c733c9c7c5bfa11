"""The scripts: one file for each verb, with what all of them know put after its first line.

Each call of a script makes its functions anew, so those that need none are not given any.
"""

from collections.abc import Mapping
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType

import msgspec

from fairlead.stores.redis.keys import PARTS

_KEYS = {
    "announce": (),
    "register": (),
    "count": (),
    "put": ("bodies", "ready", "due", "expiring", "settings"),
}
"""The keys of scripts that do not get all those of a queue, and so know none of them by name."""


class Script(msgspec.Struct, frozen=True):
    """A script, the name by which a server that has it knows it, and the keys it gets."""

    text: str
    sha: str
    parts: tuple[str, ...]


def _read() -> dict[str, Script]:
    folder = files(__package__) / "lua"
    texts = {
        each.name.removesuffix(".lua"): each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith(".lua")
    }
    clock, keys, moves = (texts.pop(name) for name in ("clock", "keys", "moves"))
    scripts = {}
    for name, text in texts.items():
        first, _, rest = text.partition("\n")
        common = clock if name in _KEYS else clock + keys + moves
        whole = f"{first}\n{common}{rest}"
        sha = sha1(whole.encode(), usedforsecurity=False).hexdigest()
        scripts[name] = Script(whole, sha, _KEYS.get(name, PARTS))
    return scripts


SCRIPTS: Mapping[str, Script] = MappingProxyType(_read())
"""All scripts, by verb."""
