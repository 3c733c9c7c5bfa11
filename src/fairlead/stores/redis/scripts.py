"""The scripts: one file for each verb, with what all of them know put after its first line.

Each call of a script makes its functions anew, so those that need none are not given any.
"""

from collections.abc import Mapping
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType

import msgspec

_ALONE = {"announce"}
"""Scripts that work on no queue."""
_PLAIN = {"put", "due"}
"""Scripts that make none of the moves that others share."""


class Script(msgspec.Struct, frozen=True):
    """A script, and the name by which a server that has it knows it."""

    text: str
    sha: str


def _read() -> dict[str, Script]:
    folder = files(__package__) / "lua"
    texts = {
        each.name.removesuffix(".lua"): each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith(".lua")
    }
    keys, moves = texts.pop("keys"), texts.pop("moves")
    scripts = {}
    for name, text in texts.items():
        first, _, rest = text.partition("\n")
        common = "" if name in _ALONE else keys if name in _PLAIN else keys + moves
        whole = f"{first}\n{common}{rest}"
        scripts[name] = Script(whole, sha1(whole.encode(), usedforsecurity=False).hexdigest())
    return scripts


SCRIPTS: Mapping[str, Script] = MappingProxyType(_read())
"""All scripts, by verb."""
