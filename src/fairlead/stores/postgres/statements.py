"""The SQL of this store, read from the `.sql` files next to this module."""

from functools import cache
from importlib.resources import files

from fairlead.core.admin import Migration
from fairlead.stores.statements import named_statements, numbered_steps

_HERE = files("fairlead.stores.postgres")


@cache
def statements(schema: str) -> dict[str, str]:
    """Return every statement by its name, on the tables of this schema (its quoted name)."""
    return {
        name: text.replace("{schema}", schema)
        for name, text in named_statements(_HERE.joinpath("sql")).items()
    }


@cache
def migrations() -> list[Migration]:
    """Return the scripts that build the schema, in order."""
    return numbered_steps(_HERE.joinpath("migrations"))
