"""One way into the line, one out of it, one aside and one back, as SQLite and Redis have them written.

PostgreSQL's are in test_postgres_ways.py; memory has a method for each.
"""

import re
from importlib.resources import files

from fairlead.stores.redis.functions import SHARED

SQL = {
    each.name: each.read_text(encoding="utf-8")
    for each in (files("fairlead.stores.sqlite") / "sql").iterdir()
    if each.name.endswith(".sql")
}
LUA = {
    each.name.removesuffix(".lua"): each.read_text(encoding="utf-8")
    for each in (files("fairlead.stores.redis") / "lua").iterdir()
    if each.name.endswith(".lua")
}


def found(texts: dict[str, str], pattern: str) -> list[str]:
    """Return the files that have this, as often as they have it."""
    return sorted(name for name, text in texts.items() for _ in re.findall(pattern, text))


def test_on_sqlite_only_the_statements_of_the_ways_move_jobs() -> None:
    # A job that is put, and one that comes back after its end: the second is copied from where it was.
    assert found(SQL, r"INSERT (?:OR \w+ )?INTO fairlead_job\b") == ["ways.sql", "ways.sql"]
    assert found(SQL, r"(?:DELETE|REPLACE) (?:FROM|INTO) fairlead_job\b") == ["ways.sql"]
    assert found(SQL, r"INTO fairlead_finished\b") == ["ways.sql"]
    assert found(SQL, r"INTO fairlead_dead\b") == ["ways.sql"]
    # One that waits again, one that is parked, and one that comes back.
    assert found(SQL, r"(?:SET|,)\s+parked = ") == ["ways.sql"] * 3


def test_on_sqlite_one_module_uses_those_statements() -> None:
    modules = {
        each.name: each.read_text(encoding="utf-8")
        for each in files("fairlead.stores.sqlite").iterdir()
        if each.name.endswith(".py")
    }
    for way in ("finish", "bury", "remove", "wait_again", "park", "lift_", "bring_back_"):
        assert f"-- name: {way.removesuffix('_')}\n" in SQL["ways.sql"]
        pattern = rf'connection,\s+f?"{way}' + ("" if way.endswith("_") else '"')
        assert set(found(modules, pattern)) == {"ways.py"}, way


def test_on_redis_jobs_enter_and_leave_in_one_file() -> None:
    assert "line" in SHARED
    for place in ("ready", "due", "done", "cancelled", "dead"):
        assert found(LUA, rf"'ZADD', {place}\b") == ["line"], place
    # The repair parks again what stands under a wrong mark.
    assert found(LUA, r"'ZADD', parked\b") == ["line", "mending"]
    # A job that has ended leaves its place there when it is deleted or comes back.
    assert found(LUA, r"'ZREM', final\b") == ["delete", "revive"]
