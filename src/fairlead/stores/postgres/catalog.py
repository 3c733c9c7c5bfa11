"""The functions and views of the schema: which there are, and how they come into the database.

Migrations make tables and keep what is in them; functions and views are only text. A program
replaces all of them when their text is another than what was applied last, unless a newer program
applied that. Workers of other versions may be calling them meanwhile, so

* a verb takes one text and returns text, or texts, for good: new meanings are new keys in the
  documents, which readers that do not know them pass over;
* a function that verbs call may change what it does, but what takes or returns something else has
  a new name. The one before stays until the next time: calls that had begun may need it;
* a view gets new columns at its end. One that cannot be read so any more has a new name.

PostgreSQL refuses the rest, and then nothing was changed.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.statements import migrations, statements

REVISION = 1
"""Which functions these are. It is greater than in the version before if one of them is another.

A program applies its own unless those of a greater revision are there. Of two with the same
revision and other texts, as when somebody works on them, the last one wins; two versions would do
that for ever, so `tests/versions/test_previous.py` compares them.
"""

ORDER = (
    # What a function in SQL, or a view, names must be there before it.
    "functions/time",
    "functions/document",
    "functions/bounds",
    "functions/days",
    "functions/park",
    "functions/limits",
    "views/kept",
    "views/mended",
    "views/records",
    "functions/tasks",
    "functions/gate",
    "functions/entries",
    "functions/checks",
    "functions/told",
    "functions/known",
    "functions/ends",
    "functions/leave",
    "functions/enter",
    "functions/marks",
    "functions/walk",
    "functions/share_out",
    "functions/look",
    "functions/lease",
    "functions/choose",
    "functions/whose",
    "functions/read",
    "functions/audit",
    "functions/acts",
    "functions/sound",
    "functions/flaws_line",
    "functions/flaws_ended",
    "functions/flaws_entries",
    "functions/flaws_other",
    "functions/flaw_kinds",
    "verbs/put",
    "verbs/claim",
    "verbs/extend",
    "verbs/settle",
    "verbs/held",
    "verbs/announce",
    "verbs/due",
    "verbs/upkeep",
    "verbs/read_entries",
    "verbs/write_entries",
    "verbs/served",
    "verbs/find",
    "verbs/attempts",
    "verbs/live_workers",
    "verbs/act",
    "verbs/noted",
    "verbs/used",
    "verbs/retain",
    "verbs/flaws",
    "verbs/repair",
    "verbs/allow",
    "verbs/strays",
)
_VIEWS = "views/"
_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+)", re.MULTILINE)
_HERE = files("fairlead.stores.postgres")


@cache
def text_of(name: str) -> str:
    """Return the text of a file; `{schema}` stands for the name of the schema in it."""
    return _HERE.joinpath(f"{name}.sql").read_text()


def functions_digest() -> str:
    """Return what the texts of all functions come to."""
    return _digest(name for name in ORDER if not name.startswith(_VIEWS))


def views_digest() -> str:
    """Return what the texts of all views come to. To replace one waits for whoever reads it."""
    return _digest(name for name in ORDER if name.startswith(_VIEWS))


def _digest(names: Iterable[str]) -> str:
    texts = "\0".join(text_of(name) for name in names)
    return hashlib.sha256(texts.encode()).hexdigest()


def serve(address: Address, levels: Iterable[int]) -> str:
    """Return what lets verbs refuse programs below the highest of these levels, from now on."""
    least = max(levels)
    return f"SET LOCAL fairlead.least = '{least}';\n{statements(address.quoted_schema)['serve']}"


def script(address: Address, *, views: bool = True) -> str:
    """Return what replaces all functions, and views if they changed; for one transaction.

    It goes by the search path, and expects that nobody else does the same meanwhile.
    """
    names = [name for name in ORDER if views or not name.startswith(_VIEWS)]
    made = _VIEW.findall("\n".join(map(text_of, ORDER)))
    apply = statements(address.quoted_schema)
    return "\n".join(
        (
            f"SET LOCAL fairlead.revision = '{REVISION}';",
            f"SET LOCAL fairlead.functions = '{functions_digest()}';",
            f"SET LOCAL fairlead.views_digest = '{views_digest()}';",
            f"SET LOCAL fairlead.views = '{' '.join(made)}';",
            serve(address, [step.serves for step in migrations()]),
            apply["before_verbs"],
            *(text_of(name).replace("{schema}", address.quoted_schema) for name in names),
            apply["after_verbs"],
        )
    )
