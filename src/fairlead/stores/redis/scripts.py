"""The scripts: one file for each verb, with what all of them know put after its first line."""

from collections.abc import Mapping
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType

import msgspec

_ON_ITS_OWN = {"announce"}
"""Scripts that work on no queue."""


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
    common = texts.pop("queue")
    scripts = {}
    for name, text in texts.items():
        first, _, rest = text.partition("\n")
        whole = text if name in _ON_ITS_OWN else f"{first}\n{common}{rest}"
        scripts[name] = Script(whole, sha1(whole.encode(), usedforsecurity=False).hexdigest())
    return scripts


SCRIPTS: Mapping[str, Script] = MappingProxyType(_read())
"""All scripts, by verb."""
