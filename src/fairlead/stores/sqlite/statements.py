"""The SQL of this store, read from the `.sql` files next to this module, by name."""

import re
from functools import cache
from importlib.resources import files

from fairlead.core.admin import Migration
from fairlead.stores.statements import named_statements, numbered_steps

_HERE = files("fairlead.stores.sqlite")


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name.

    One that says `{place}` exists for each place of jobs that ended, and `bring_back` for each part
    that says which jobs come back.
    """
    found = named_statements(_HERE.joinpath("sql"))
    for name, text in list(found.items()):
        if "{place}" in text:
            for place in ("dead", "finished"):
                whole = text.replace("{place}", place).replace("{ended}", found[f"ended_{place}"])
                found[f"{name}_{place}"] = whole
        if name.startswith("which_"):
            whole = found["bring_back"].replace("{which}", text)
            found[name.replace("which", "bring_back", 1)] = whole
    return found


@cache
def migrations() -> list[Migration]:
    """Return the scripts that build the schema, in order."""
    return numbered_steps(_HERE.joinpath("migrations"))


@cache
def head_statement() -> str:
    """Return `heads` for the one job of a sequence number, wherever it stands."""
    return statements()["heads"].partition(" INDEXED BY")[0] + " WHERE seq = :seq)"


@cache
def heads_statement() -> str:
    """Return `heads` for many queues: [queue, order_at, id] of each are in the list `:asked`."""
    one = statements()["heads"]
    for number, name in enumerate(("queue", "order_at", "id")):
        one = re.sub(rf":{name}\b", f"json_extract(asked.value, '$[{number}]')", one)
    return f"SELECT '[' || group_concat(({one}), ',') || ']' FROM json_each(:asked) AS asked"


@cache
def put_statement(rows: int) -> str:
    """Return the put for this many jobs: the tuple of `put`, repeated."""
    head, tuple_, tail = re.split(r"(\(\?[^)]*\))", statements()["put"])
    return head + ", ".join([tuple_] * rows) + tail
