"""The SQL of this store, read from the `.sql` files next to this module, by name."""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_HERE = files("fairlead.stores.sqlite")


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name."""
    found: dict[str, str] = {}
    for file in sorted(_HERE.joinpath("sql").iterdir(), key=lambda file: file.name):
        _, *parts = _NAME.split(file.read_text())
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            found[name] = text.strip()
    return found


@cache
def migrations() -> dict[int, str]:
    """Return the scripts that build the schema, by number."""
    folder = _HERE.joinpath("migrations")
    scripts = {int(file.name[:4]): file.read_text() for file in folder.iterdir()}
    return dict(sorted(scripts.items()))


@cache
def put_statement(rows: int) -> str:
    """Return the put for this many jobs: the tuple of `put.sql`, repeated."""
    head, tuple_, tail = re.split(r"(\(\?[^)]*\))", statements()["put"])
    return head + ", ".join([tuple_] * rows) + tail
