"""What commands show of rows that somebody damaged, or wrote to deceive: all of it, safely."""

import asyncio
import json
import re
import sqlite3
import time
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest

from fairlead.cli.command import Problem, say
from fairlead.cli.listing import job_table, page
from fairlead.cli.table import Column, cell_width, table
from fairlead.cli.words import as_json, stored_json
from fairlead.core.acts import AuditLine
from fairlead.core.admin import ErrorGroup
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, PastAttempt, State
from fairlead.core.text import SHOWN, steady
from fairlead.stores import store_for
from tests.cli.shop import APP, Stock, objects, refused, run, stocked, told
from tests.fuzz.postgres import PostgresVictim
from tests.fuzz.redis import RedisVictim
from tests.fuzz.victim import Damage

DEEP = "[" * 3_000 + "]" * 3_000
HUGE = "x" * 10_000_000
HIDDEN = "ma\u200bil\x1b[2J\u202e\udcff\U000e0041"
STORED = [DEEP, "{", "", "\x00", HIDDEN, '{"a": ' * 500 + "1" + "}" * 500, f'"{HUGE}"', "null"]


def record(text: str = "{}", name: str = "t", **more: Any) -> JobRecord:
    failure = PastAttempt(1, "failed", name, 1, 1, 2, name, text, text, name)
    return JobRecord(
        *(JobId(name), name, 1, name, State.DEAD, text, text, 0, 1, 0, 7, 1, 1),
        **{"worker": name, "result": text, "reason": name, "errors": (failure,)} | more,
    )


def attempt(name: str) -> Attempt:
    return Attempt(JobId(name), 1, 1, name, name, name, name, 1, 1, 1, 2, name, name)


@pytest.mark.parametrize("text", STORED, ids=lambda text: repr(text[:12]))
def test_whatever_is_stored_a_page_and_a_line_of_json_show_it(text: str) -> None:
    began = time.process_time()
    lines = list(page(record(text), [attempt("t")], [AuditLine(1, "me", "edit", "x", 1, text)]))
    assert max(map(len, lines)) < 300_000
    assert not any(char in "".join(lines) for char in "\u200b\u202e\udcff\U000e0041\x00")
    line = json.loads(as_json(record(text)))
    assert line["id"] == "t"
    assert json.loads(stored_json(text)) is not ...
    assert time.process_time() - began < 5


def test_what_cannot_be_read_is_shown_as_text_with_the_reason() -> None:
    text = "\n".join(page(record(DEEP), [], []))
    assert "not JSON we can read (it is nested too deep): [[[[" in text
    assert "more characters)" in text
    assert json.loads(as_json(record(DEEP)))["payload"] == DEEP
    assert json.loads(as_json(record('{"a": 1}')))["payload"] == {"a": 1}


@pytest.mark.parametrize("name", [HIDDEN, HUGE, "漢" * 10_000], ids=["hidden", "huge", "wide"])
def test_no_name_is_wider_than_its_column(name: str) -> None:
    began = time.process_time()
    columns = [Column("ID"), Column("NAME", least=8), Column("WHY", least=8), Column("N", goes=1)]
    for line in table(columns, [[name] * 4] * 20, 80):
        assert cell_width(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) <= 80
    for line in job_table([record(name=name)]):
        assert len(line) < 40_000
        assert not any(char in line for char in "\u200b\u202e\udcff\U000e0041")
    group = ErrorGroup(name, name, name, (name,), 1, 1, 2, JobId(name))
    json.loads(as_json(group))
    assert time.process_time() - began < 5


def test_no_name_is_longer_in_a_file_than_a_name_can_be() -> None:
    """Where no terminal is, the id of a worker was printed whole."""
    columns = [Column("WORKER", least=8), Column("N"), Column("WHY", least=8, most=SHOWN)]
    line = table(columns, [["w" * 3_000, "n" * 3_000, "y" * 3_000]])[1]
    assert line == f"{'w' * 127}…  {'n' * 127}…  {'y' * 3_000}"


def test_no_part_of_a_page_steers_a_terminal() -> None:
    """The id of a dead letter did, in the advice below it."""
    acts = [AuditLine(1, HIDDEN, HIDDEN, HIDDEN, 1, HIDDEN)]
    text = "\n".join(page(record(HIDDEN, HIDDEN), [attempt(HIDDEN)], acts))
    plain = re.sub(r"\x1b\[(0|1|31)m", "", text)
    assert not any(char in plain for char in "\x1b\u200b\u202e\udcff\U000e0041")
    assert "`fairlead dead replay 'ma\\u200bil\\x1b[2J" in text


def test_nothing_but_our_own_colours_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = f"{click.style('bad', fg='red', bold=True)}: {HIDDEN}\x1b[8m\x1b[31;8m\r\nnext"
    # Click takes colours out where no terminal is, and more than colours: not what we rely on.
    assert steady(said) == (
        "\x1b[31m\x1b[1mbad\x1b[0m: ma\\u200bil\\x1b[2J\\u202e\\udcff\\U000e0041"
        "\\x1b[8m\\x1b[31;8m\\r\nnext"
    )
    say(said)
    assert capsys.readouterr().out.endswith("\\x1b[8m\\x1b[31;8m\\r\nnext\n")


def test_an_error_steers_no_terminal_and_tells_no_password() -> None:
    told = Problem("ma\u200bil\x1b[2J: redis://:c4n4ry@cache does not answer").message
    assert told == "ma\\u200bil\\x1b[2J: redis://:***@cache does not answer"


def test_every_command_goes_on_over_damaged_rows(folder: Path, stock: Stock) -> None:
    with sqlite3.connect(folder / "jobs.db") as raw:
        raw.execute(
            "UPDATE fairlead_dead SET options = ?, errors = ?, payload = ?, task = ?",
            (DEEP, DEEP, DEEP, f"shop\u200b\x1b[2J{'x' * 100_000}"),
        )
        ids = [job_id for (job_id,) in raw.execute("SELECT id FROM fairlead_dead")]
    raw.close()
    look_at(folder, ids[0])


def look_at(folder: Path, job_id: str, *more: str, **environ: str) -> None:
    """Run every command that shows a dead letter; what it shows is bounded, and steers nothing."""
    for arguments in (
        ["jobs", "list", "--state", "dead"],
        ["jobs", "show", job_id],
        ["dead", "list"],
        ["dead", "list", "--by-error"],
        ["dead", "show", job_id],
        ["explain", job_id],
    ):
        text = told(folder, *arguments, *more, **environ)
        assert "\x1b" not in text
        assert not any(char in text for char in "\u200b\u202e")
        assert max(map(len, text.splitlines())) < 6_000, arguments
        assert objects(folder, *arguments, *more, **environ) or "--by-error" in arguments


SERVERS: dict[str, tuple[type[PostgresVictim | RedisVictim], list[Damage]]] = {
    "postgres_url": (
        PostgresVictim,
        [
            Damage("dead.task", "control"),
            Damage("dead.payload", "deep"),
            Damage("dead.options", "deep in a field"),
            Damage("dead.errors", "deep"),
        ],
    ),
    "redis_url": (
        RedisVictim,
        [
            Damage("body.task", "control"),
            Damage("body.payload", "deep"),
            Damage("body.options", "deep in a field"),
            Damage("standing.reason", "control"),
        ],
    ),
}


@pytest.mark.parametrize("server", SERVERS)
def test_every_command_goes_on_over_damage_in_a_server(
    folder: Path, server: str, request: pytest.FixtureRequest
) -> None:
    url: str = request.getfixturevalue(server)
    store = store_for(url)

    async def put() -> Stock:
        try:
            await store.open()
            return await stocked(store)
        finally:
            await store.close()

    stock = asyncio.run(put())
    kind, damages = SERVERS[server]
    victim = kind(url)
    done = [damage for damage in damages if victim.inflict(damage, stock.bad, Random(1))]
    victim.close()
    assert done == damages
    look_at(folder, stock.bad, "--url", url, FAIRLEAD_APP="")


def test_texts_that_can_mean_nothing_are_refused_before_the_store_is_asked(folder: Path) -> None:
    long = "x" * 100_000
    for arguments in (
        ["jobs", "list", "--queue", long],
        ["jobs", "list", "--tag", long],
        ["dead", "list", "--error", long],
        ["jobs", "show", long],
        ["queues", "pause", long],
        ["jobs", "list", "--since", long],
        ["worker", "shop:app", "--queue", f"mail={'9' * 5_000}"],
        [long],
        ["jobs", "list", long],
    ):
        assert len(refused(folder, *arguments)) < 600, arguments
    assert "is no valid UTF-8" in refused(folder, "jobs", "list", "--queue", "\udcff")


def test_a_key_that_is_there_twice_is_refused_on_the_command_line(folder: Path) -> None:
    problem = refused(folder, "enqueue", "greet", '{"name": "a", "name": "b"}', **APP)
    assert problem == "call of task 'greet': the key 'name' is there twice; keep one of them"
    answer = run(folder, "enqueue", "greet", "-", stdin="[" * 3_000_000, **APP)
    assert answer.returncode == 2
    assert "the limit is 262,144" in answer.stderr
