"""Which programs a store's schema still serves: one decision for every store.

Each applied step is stored with the least level of the programs that it serves, so that a program
which does not have the step can tell whether to go on.
"""

from collections.abc import Iterable

from fairlead.core.errors import SchemaOutdated


def check_served(applied: Iterable[tuple[int, int]], newest: int, level: int) -> None:
    """Raise unless every step that is newer than a program's own still serves its level.

    The steps are given as (number, least level).
    """
    found = {number: serves for number, serves in applied if number > newest}
    if any(serves > level for serves in found.values()):
        raise SchemaOutdated(max(found), newest)
