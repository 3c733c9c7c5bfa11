"""A few rounds of the fuzz on every store; `make chaos` plays every damage, and many at once."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests.fuzz.grounds import GROUNDS
from tests.fuzz.postgres import damaged_columns
from tests.fuzz.rounds import one_round, plans, table
from tests.fuzz.sqlite import NUMERIC, TABLES
from tests.servers.postgres import PostgresServer

SHORT, LONG = 8, 500
SEED = 20_261_116 % 1_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", GROUNDS)
def test_whatever_is_damaged_harms_only_itself(name: str) -> None:
    """Another sample of damages with every seed; what fails is told with the way to repeat it."""
    with GROUNDS[name]() as ground:
        victim = ground(()).victim
        number_of_rounds = SHORT if victim.at_once == 1 else SHORT // 4
        rounds = [
            asyncio.run(one_round(ground(each), each, number))
            for number, each in plans(victim.damages, number_of_rounds, SEED, victim.at_once)
        ]
    assert not any(each.problems for each in rounds), table(rounds)
    assert any(each.inflicted for each in rounds)


def test_every_column_of_postgresql_is_damaged(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Whoever adds a column is told here; of a partition, the whole has it."""
    address = Address.of(postgres_url)
    migrate(address)
    columns = postgres_server.execute(
        "SELECT c.table_name || '.' || c.column_name FROM information_schema.columns AS c "
        "JOIN information_schema.tables AS t USING (table_schema, table_name) "
        "WHERE c.table_schema = %s AND t.table_type = 'BASE TABLE' AND c.table_name !~ '_[0-9]{8}$'",
        address.schema,
    )
    assert damaged_columns() == {name for (name,) in columns}


async def test_every_column_of_an_sqlite_file_is_damaged(tmp_path: Path) -> None:
    """Also one that a later migration adds; and each as what it holds."""
    store = store_for(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        columns = raw.execute(
            "SELECT substr(t.name, 10), c.name, c.type FROM sqlite_master AS t "
            "JOIN pragma_table_info(t.name) AS c WHERE t.type = 'table'"
        ).fetchall()
    assert {(table, name) for table, name, _ in columns} == {
        (table, name) for table, names in TABLES.items() for name in names
    }
    assert {name for _, name, kind in columns if kind == "INTEGER"} == NUMERIC


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GROUNDS)
def test_every_damage_and_many_at_once_harm_only_themselves(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with GROUNDS[name]() as ground:
        victim = ground(()).victim
        damages = list(victim.damages)
        number_of_rounds = max(LONG, len(damages) // victim.at_once + 100)
        rounds = []
        for number, each in plans(damages, number_of_rounds, SEED, victim.at_once):
            rounds.append(asyncio.run(one_round(ground(each), each, number)))
    with capsys.disabled():
        print(f"\n{name}: seed {SEED}\n{table(rounds)}")
    assert {damage for each in rounds for damage in each.tried} == set(damages)
    assert not any(each.problems for each in rounds)
