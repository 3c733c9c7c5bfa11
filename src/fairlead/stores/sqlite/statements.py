"""The SQL of this store, read from the `.sql` files next to this module, by name."""

import re
from functools import cache
from importlib.resources import files

from fairlead.core.admin import Migration

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_HERE = files("fairlead.stores.sqlite")


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name.

    What a filter asks stands where a statement says `{chosen}`. One that says `{finished}`
    exists twice: as it is, and as NAME_since, which looks only at what ended since then.
    """
    found: dict[str, str] = {}
    for file in sorted(_HERE.joinpath("sql").iterdir(), key=lambda file: file.name):
        _, *parts = _NAME.split(file.read_text())
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            found[name] = text.strip()
    for name, text in list(found.items()):
        whole = text.replace("{chosen}", found["chosen"])
        found[name] = whole.replace("{finished}", "fairlead_finished_record")
        if "{finished}" in whole:
            found[f"{name}_since"] = whole.replace("{finished}", found["finished_since"])
    return found


@cache
def migrations() -> list[Migration]:
    """Return the scripts that build the schema, in order."""
    folder = _HERE.joinpath("migrations")
    return [
        Migration(int(file.name[:4]), file.name[5:].removesuffix(".sql"), file.read_text())
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
    ]


@cache
def put_statement(rows: int) -> str:
    """Return the put for this many jobs: the tuple of `put.sql`, repeated."""
    head, tuple_, tail = re.split(r"(\(\?[^)]*\))", statements()["put"])
    return head + ", ".join([tuple_] * rows) + tail
