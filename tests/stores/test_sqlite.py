"""What is peculiar to the SQLite store: the file, its locks, group commit, wake-ups."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    ConfigError,
    SchemaOutdated,
    StoreError,
    StoreFull,
    StoreGone,
    StoreUnavailable,
    Unanswered,
)
from fairlead.core.admin import Migration
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, State
from fairlead.stores import store_for
from fairlead.stores.sqlite import checkpoint, connection, wake
from fairlead.stores.sqlite.connection import Place
from fairlead.stores.sqlite.line import SqliteLine
from fairlead.stores.sqlite.session import Session
from fairlead.stores.sqlite.store import SqliteStore
from tests.words import are_new, claim, done, failed, new_job, quiet


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def file(path: Path) -> AsyncIterator[SqliteStore]:
    """A store on a fresh file, with the machine's clock."""
    store = store_for(f"sqlite:///{path}")
    assert isinstance(store, SqliteStore)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


# The file


async def test_the_file_and_all_beside_it_are_for_their_owner_only(
    file: SqliteStore, path: Path
) -> None:
    await file.put([new_job()])
    files = list(path.parent.iterdir())
    assert len(files) >= 4
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


@pytest.mark.parametrize(("durability", "level"), [("durable", 2), ("fast", 1)])
async def test_durability_is_what_the_url_says(path: Path, durability: str, level: int) -> None:
    store = store_for(f"sqlite:///{path}?durability={durability}")
    assert isinstance(store, SqliteStore)
    writer = (await store._opened()).writer
    assert writer._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer._connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    await store.close()


async def test_the_default_is_durable(file: SqliteStore) -> None:
    writer = (await file._opened()).writer
    assert writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_jobs_survive_closing_and_opening(file: SqliteStore, path: Path) -> None:
    job = new_job()
    await file.put([job])
    await file.close()
    again = store_for(f"sqlite:///{path}")
    assert [j.id for j in await claim(again)] == [job.id]
    await again.close()


async def test_a_file_that_cannot_be_opened_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no folder \S+; make it"):
        await store_for(f"sqlite:///{tmp_path}/missing/jobs.db").open()
    (tmp_path / "text.db").write_text(
        "not a database at all, but long enough to look like one " * 9
    )
    with pytest.raises(StoreUnavailable, match="file is not a database; name another file"):
        await store_for(f"sqlite:///{tmp_path}/text.db").open()


async def test_a_schema_from_the_future_is_refused(file: SqliteStore, path: Path) -> None:
    await file.close()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO fairlead_migration VALUES (999, 0, 2)")
    raw.close()
    with pytest.raises(SchemaOutdated, match="is version 999, this program needs 1; upgrade this"):
        await store_for(f"sqlite:///{path}").open()
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM fairlead_migration WHERE version = 999")
    raw.close()


async def test_the_applications_own_tables_and_version_are_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE job (id)")
        raw.execute("PRAGMA user_version = 42")
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    await store.close()
    tables = {row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in tables if not name.startswith("fairlead_")} == {"job"}
    assert raw.execute("PRAGMA user_version").fetchone() == (42,)
    raw.close()


async def test_many_openers_at_once_migrate_once(path: Path) -> None:
    stores = [store_for(f"sqlite:///{path}") for _ in range(12)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.put([new_job()]) for store in stores))
    assert await stores[0].admin.count() == {"mail": {State.WAITING: 12}}
    for store in stores:
        await store.close()


async def test_a_migration_that_fails_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.stores.sqlite import migrate

    broken = [Migration(1, "oops", "CREATE TABLE fairlead_job (id);\nCREATE TABEL oops (id);\n")]
    monkeypatch.setattr(migrate, "migrations", lambda: broken)
    with pytest.raises(StoreError):
        await store_for(f"sqlite:///{path}").open()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    raw.close()
    monkeypatch.undo()
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    await store.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """All connections that are made from now on."""
    connect, made = sqlite3.connect, list[sqlite3.Connection]()

    def noted(*args: Any, **named: Any) -> sqlite3.Connection:
        made.append(connect(*args, **named))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return made


def _cannot(*_: object) -> None:
    raise RuntimeError("not now")


def _is_closed(made: sqlite3.Connection) -> bool:
    try:
        made.execute("SELECT 1")
    except sqlite3.ProgrammingError as problem:
        return "closed" in str(problem)
    return False


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (connection, "_name_of"),
        (Place, "_prepare"),
        (checkpoint.Checkpointer, "__init__"),
        (threading.Thread, "start"),
    ],
)
def test_a_file_that_cannot_be_opened_is_let_go_of(
    path: Path,
    made: list[sqlite3.Connection],
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    what: str,
) -> None:
    """Who tries again and again, for want of a thread say, does not pile up connections."""
    before = _open_fds()
    monkeypatch.setattr(where, what, _cannot)
    with pytest.raises(RuntimeError, match="not now"):
        Session(Place(path), SqliteLine(ManualClock()))
    assert made
    assert all(map(_is_closed, made))
    assert _open_fds() == before


@pytest.mark.parametrize(("where", "what"), [(wake.Watch, "_look"), (wake, "_inotify")])
async def test_a_watch_that_cannot_begin_is_let_go_of(
    file: SqliteStore,
    made: list[sqlite3.Connection],
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    what: str,
) -> None:
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="not now"):
        patched.setattr(where, what, _cannot)
        await file.wait(0)
    assert [_is_closed(each) for each in made] == [True]


# Group commit


class Commits:
    """Counts the transactions of a store's writer."""

    def __init__(self, store: SqliteStore) -> None:
        assert store._session is not None
        self.count = 0
        store._session.writer._connection.set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        self.count += statement == "COMMIT"


async def test_concurrent_callers_share_commits(file: SqliteStore) -> None:
    commits = Commits(file)
    await asyncio.gather(*(file.put([new_job()]) for _ in range(200)))
    assert commits.count <= 20


async def test_a_claim_and_a_settlement_share_a_commit(file: SqliteStore) -> None:
    await file.put([new_job(), new_job()])
    [job] = await claim(file, slots=1)
    commits = Commits(file)
    await asyncio.gather(file.settle([done(job)]), claim(file, slots=1))
    assert commits.count == 1


async def test_a_bad_row_fails_its_own_caller_alone(file: SqliteStore) -> None:
    """A number too large for the engine; the others of the batch are accepted."""
    bad = new_job(run_at=2**70)
    answers = await asyncio.gather(
        *(file.put([new_job()]) for _ in range(20)),
        file.put([bad, new_job()]),
        *(file.put([new_job()]) for _ in range(20)),
        return_exceptions=True,
    )
    assert [type(a) for a in answers if isinstance(a, BaseException)] == [OverflowError]
    assert await file.admin.count() == {"mail": {State.WAITING: 40}}
    assert await file.admin.find(bad.id) is None


async def test_cancelling_a_caller_cancels_its_wait_not_the_work(file: SqliteStore) -> None:
    jobs = [new_job() for _ in range(50)]
    puts = [asyncio.create_task(file.put([job])) for job in jobs]
    await asyncio.sleep(0)
    for put in puts[::2]:
        put.cancel()
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(a, asyncio.CancelledError) for a in answers) == 25
    assert [are_new(a) for a in answers if isinstance(a, list)] == [[True]] * 25
    await file.put([new_job()])
    assert await file.admin.count() == {"mail": {State.WAITING: 51}}


async def test_what_was_not_committed_is_not_acknowledged(file: SqliteStore, path: Path) -> None:
    """An answer before the commit would be a lie if the commit fails (P1)."""
    await file.put([new_job()])
    session = await file._opened()

    class FailingCommit:
        """The writer's connection, with a disk that is full when it matters."""

        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real
            self.broken = True

        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if statement == "COMMIT" and self.broken:
                raise sqlite3.OperationalError("database or disk is full")
            return self.real.execute(statement, *values)

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    failing = FailingCommit(session.writer._connection)
    session.writer._connection = failing  # type: ignore[assignment]
    lost = [new_job() for _ in range(5)]
    answers = await asyncio.gather(*(file.put([job]) for job in lost), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
    with pytest.raises(StoreUnavailable, match="disk is full"):
        file.put_blocking([lost[0]])
    for job in lost:
        assert await file.admin.find(job.id) is None
    failing.broken = False
    assert are_new(await file.put(lost)) == [True] * 5


class FaultyDisk:
    """The writer's connection, with a disk that fails at some commits, before them or after."""

    def __init__(self, real: sqlite3.Connection, faults: list[str]) -> None:
        self.real = real
        self.faults = faults

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.faults:
            if self.faults.pop(0) == "after":
                self.real.execute(statement)
            problem = sqlite3.OperationalError("disk I/O error")
            problem.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise problem
        return self.real.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after", "before"]])
async def test_a_commit_that_nobody_knows_of_is_repeated(
    file: SqliteStore, faults: list[str]
) -> None:
    """F13: the log may hold what could not be synced; a job is put again, and is one."""
    await file.put([new_job()])
    writer = (await file._opened()).writer
    writer._connection = FaultyDisk(writer._connection, list(faults))  # type: ignore[assignment,arg-type]
    await file.put([new_job()])
    writer._connection.faults = list(faults)  # type: ignore[union-attr]
    await asyncio.to_thread(file.put_blocking, [new_job()])
    assert await file.admin.count() == {"mail": {State.WAITING: 3}}


async def test_a_disk_that_never_answers_leaves_it_open(path: Path) -> None:
    """F80: the error says that the job may exist, and the same put can be repeated."""
    file = store_for(f"sqlite:///{path}?timeout=0.2")
    assert isinstance(file, SqliteStore)
    await file.put([new_job()])
    writer = (await file._opened()).writer
    writer._connection = FaultyDisk(writer._connection, ["after"] * 1000)  # type: ignore[assignment,arg-type]
    job = new_job()
    with pytest.raises(Unanswered, match="disk I/O error; check the disk"):
        await file.put([job])
    with pytest.raises(Unanswered, match="disk I/O error; check the disk"):
        file.put_blocking([job])
    assert await file.admin.count() == {"mail": {State.WAITING: 2}}
    writer._connection.faults = []  # type: ignore[union-attr]
    assert are_new(await file.put([job])) == [False]
    await file.close()


async def test_a_full_disk_refuses_and_recovers(path: Path) -> None:
    """The file may not grow: puts fail with a next step, claims and settlements go on (F30)."""
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job() for _ in range(3)])
    assert isinstance(store, SqliteStore)
    writer = (await store._opened()).writer
    pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
    writer._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull, match="full; free some space, nothing was accepted"):
        await store.put([NewJob(j.id, "t", "mail", "x" * 9000) for j in (new_job(), new_job())])
    [job] = await claim(store, slots=1)
    writer._connection.execute("PRAGMA max_page_count = 1000000")
    assert set(await store.settle([done(job)])) == {job.id}
    assert are_new(await store.put([new_job()])) == [True]
    assert await store.admin.audit() == []
    await store.close()


# Locks


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(path: Path) -> Iterator[Callable[[], None]]:
    """Let another process have the write lock; yields what makes it let go."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.stdin.close


async def test_a_busy_file_is_waited_for(file: SqliteStore, path: Path) -> None:
    await file.put([new_job()])
    with held_by_another(path) as let_go:
        timer = threading.Timer(0.3, let_go)
        timer.start()
        assert are_new(file.put_blocking([new_job()])) == [True]
        timer.join()


async def test_patience_ends_with_a_typed_error_and_nothing_lost(path: Path) -> None:
    store = store_for(f"sqlite:///{path}?timeout=0.2")
    await store.put([new_job()])
    job = new_job()
    with held_by_another(path):
        held = r"held the write lock for 0\.2 s; look for a long"
        with pytest.raises(StoreUnavailable, match=held):
            await store.put([job])
        with pytest.raises(StoreUnavailable, match=held):
            store.put_blocking([job])
    assert are_new(await store.put([job])) == [True]
    await store.close()


async def test_a_hanging_turnstile_holds_nobody_up_for_good(
    file: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process may sit in the turnstile; the write lock itself is free."""
    import fcntl

    monkeypatch.setattr(connection, "_TURNSTILE_PATIENCE", 0.05)
    with Path(f"{path}-turn").open() as turnstile:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        assert are_new(file.put_blocking([new_job()])) == [True]


@pytest.mark.parametrize("timeout", ["0.3", "5"])
async def test_a_stopped_peer_in_the_turnstile_stops_nobody(path: Path, timeout: str) -> None:
    import fcntl

    store = store_for(f"sqlite:///{path}?timeout={timeout}")
    await store.put([new_job()])
    with Path(f"{path}-turn").open() as turnstile:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        for _ in range(40):
            assert are_new(await store.put([new_job()])) == [True]
        assert isinstance(store, SqliteStore)
        (await store._opened()).writer._log_is_long = True
        for _ in range(40):
            assert are_new(await store.put([new_job()])) == [True]
    await store.close()


@pytest.mark.parametrize("fate", ["removed", "replaced"])
async def test_a_file_that_is_gone_takes_no_more_jobs(path: Path, fate: str) -> None:
    """What is written to a removed file is nowhere, so it must not be acknowledged."""
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    store.check_there()
    path.unlink()
    if fate == "replaced":
        path.touch()
    for _ in range(2):
        with pytest.raises(StoreGone, match="removed or replaced while this program .*put it back"):
            await store.put([new_job()])
    with pytest.raises(StoreGone):
        store.check_there()
    await store.close()


async def test_a_file_that_is_gone_answers_nobody_and_is_not_made_anew(path: Path) -> None:
    """What is read there is not what others see, and an empty file would hide that it is gone."""
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    path.unlink()
    for call in (
        lambda: store.admin.find(JobId("x")),
        lambda: store.wait(0),
        lambda: store.atransaction().__aenter__(),
        lambda: asyncio.to_thread(lambda: store.transaction().__enter__()),
        lambda: asyncio.to_thread(store.put_blocking, [new_job()]),
    ):
        with pytest.raises(StoreGone):
            await call()
    assert not path.exists()
    await store.close()


async def test_a_folder_that_is_gone_is_told_like_the_file(path: Path) -> None:
    path.parent.joinpath("in").mkdir()
    store = store_for(f"sqlite:///{path.parent}/in/jobs.db")
    await store.put([new_job()])
    shutil.rmtree(path.parent / "in")
    (path.parent / "in").touch()
    with pytest.raises(StoreGone):
        await store.put([new_job()])
    await store.close()


async def test_a_link_to_the_file_is_the_file(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    linked, direct = store_for(f"sqlite:///{link}"), store_for(f"sqlite:///{path}")
    await linked.put([new_job()])
    await direct.put([new_job()])
    assert await linked.admin.count() == {"mail": {State.WAITING: 2}}
    assert not Path(f"{link}-turn").exists()
    await linked.close()
    await direct.close()


async def test_patience_counts_from_when_a_caller_came(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that comes while another waits does not inherit its wait, nor start anew."""
    place = Place(path, patience=5)
    long_ago = time.monotonic() - 6
    looks = connection.waiting(place, long_ago)
    next(looks)
    with pytest.raises(StoreUnavailable, match="for 5 s"):
        next(looks)

    store = store_for(f"sqlite:///{path}")
    assert isinstance(store, SqliteStore)
    lock = (await store._opened()).writer._lock
    began: list[float | None] = []
    begin = lock.begin

    def remember(raw: sqlite3.Connection, since: float | None, look: Any) -> None:
        began.append(since)
        begin(raw, since, look)

    monkeypatch.setattr(lock, "begin", remember)
    before = time.monotonic()
    await asyncio.gather(*(store.put([new_job()]) for _ in range(5)))
    assert all(since is not None and since >= before for since in began)
    await store.close()


def test_eight_processes_write_and_all_is_there(path: Path) -> None:
    """Producers and a claimer on one file; "database is locked" reaches nobody (F29)."""
    script = (
        "import sys; from fairlead import Fairlead\n"
        "app = Fairlead(f'sqlite:///{sys.argv[1]}')\n"
        "task = app.task(name='t')(lambda n: n)\n"
        "[task.enqueue(n) for n in range(60)]\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    store = store_for(f"sqlite:///{path}")
    assert asyncio.run(_count_and_audit(store)) == ({"default": {State.WAITING: 480}}, [])


async def _count_and_audit(store: object) -> tuple[object, object]:
    assert isinstance(store, SqliteStore)
    answer = (await store.admin.count(), await store.admin.audit())
    await store.close()
    return answer


async def test_the_log_is_kept_short_by_one_checkpointer(
    file: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint this would leave a log many times as long."""
    session = await file._opened()
    session.writer._checkpointer._limit = 50
    monkeypatch.setattr(checkpoint, "LONG_LOG", 50)
    page = 4096 + 24
    for number in range(600):
        if number % 2:
            await file.put([new_job()])
        else:
            file.put_blocking([new_job()])
    assert Path(f"{path}-wal").stat().st_size < 400 * page


async def test_a_reader_in_the_way_delays_the_checkpoint_only(
    file: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await file._opened()
    session.writer._checkpointer._limit = 20
    monkeypatch.setattr(checkpoint, "LONG_LOG", 20)
    monkeypatch.setattr(checkpoint, "_PATIENCE", 0.01)
    reader = sqlite3.connect(path)
    await file.put([new_job()])
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM fairlead_job").fetchone()
    for _ in range(60):
        await file.put([new_job()])
    assert reader.execute("SELECT count(*) FROM fairlead_job").fetchone() == (1,)
    reader.close()
    for _ in range(60):
        await file.put([new_job()])
    assert session.writer._checkpointer._limit == 20


# Wake-ups


async def test_a_write_of_another_process_wakes(file: SqliteStore, path: Path) -> None:
    mark = await quiet(file)
    waiting = asyncio.create_task(file.wait(30, mark))
    script = (
        "import sys; from fairlead import Fairlead\n"
        "Fairlead(f'sqlite:///{sys.argv[1]}').task(name='t')(lambda: None).enqueue()\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(path))
    assert await asyncio.wait_for(waiting, 20) != mark
    await process.wait()


async def test_an_applications_own_commit_wakes_too(file: SqliteStore, path: Path) -> None:
    from fairlead.stores.sqlite.ways import enter

    await file.put([new_job()])
    mark = await quiet(file)
    raw = sqlite3.connect(path)
    enter(raw, [new_job()], 0)
    assert await file.wait(0.05, mark) == mark, "nothing is told before the commit"
    raw.commit()
    assert await file.wait(20, mark) != mark
    raw.close()


async def test_without_inotify_the_file_is_looked_at(
    file: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Place) -> None:
        raise OSError("no more instances")

    monkeypatch.setattr(wake, "InotifyWatch", refuse)
    mark = await quiet(file)
    waiting = asyncio.create_task(file.wait(20, mark))
    await file.put([new_job()])
    assert await waiting != mark
    assert isinstance((await file._opened()).watch(), wake.LookingWatch)
    mark = await quiet(file)
    assert await file.wait(0.02, mark) == mark


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        "payload = x'00ff'",
        "payload = CAST(x'ff41' AS TEXT)",
        "task = CAST(x'ff41' AS TEXT)",
        "options = x'00'",
        "version = 'seven'",
        "fence = 'high'",
        "order_at = 'early'",
        "enqueued_at = x'00'",
        "payload = 17",
    ],
)
async def test_a_damaged_row_is_a_dead_letter_and_the_others_go_on(
    file: SqliteStore, path: Path, damage: str
) -> None:
    """Whatever somebody wrote into the file, the claim goes on (F34, F43, P11)."""
    jobs = [new_job() for _ in range(5)]
    await file.put(jobs)
    raw = sqlite3.connect(path)
    raw.execute(f"UPDATE fairlead_job SET {damage} WHERE id = ?", (jobs[2].id,))
    raw.commit()
    claimed = await claim(file)
    whole = [job.id for job in (*jobs[:2], *jobs[3:])]
    if damage == "payload = 17":  # Stored as the text "17" by the column's affinity: readable.
        whole.insert(2, jobs[2].id)
    assert [job.id for job in claimed] == whole
    dead = raw.execute("SELECT id, reason FROM fairlead_dead").fetchall()
    assert dead == ([(jobs[2].id, "unreadable")] if len(whole) == 4 else [])
    raw.close()


async def test_a_damaged_job_keeps_the_errors_it_had(file: SqliteStore, path: Path) -> None:
    await file.put([new_job()])
    [job] = await claim(file)
    await file.settle([failed(job, 0)])
    raw = sqlite3.connect(path)
    raw.execute("UPDATE fairlead_job SET payload = x'00'")
    raw.commit()
    raw.close()
    assert await claim(file) == []
    record = await file.admin.find(job.id)
    assert record is not None
    assert [error.error for error in record.errors] == ["Oops", "Unreadable"]


async def test_a_failing_disk_makes_no_dead_letters(file: SqliteStore) -> None:
    """An I/O error is not the row's fault."""
    job = new_job()
    await file.put([job])
    session = await file._opened()

    class FailingReads:
        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real

        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if "fairlead_job_order" in statement:
                problem = sqlite3.OperationalError("disk I/O error")
                problem.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise problem
            return self.real.execute(statement, *values)

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    real = session.writer._connection
    assert real is not None
    session.writer._connection = FailingReads(real)  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable, match="disk I/O error; check the disk"):
        await claim(file)
    session.writer._connection = real
    assert [j.id for j in await claim(file)] == [job.id]


async def test_a_damaged_run_harms_only_itself(file: SqliteStore, path: Path) -> None:
    """Its neighbours in the batch are renewed and settled (I22)."""
    await file.put([new_job() for _ in range(4)])
    jobs = await claim(file)
    raw = sqlite3.connect(path)
    raw.execute("UPDATE fairlead_job SET claimed_at = 'x' WHERE id = ?", (jobs[1].id,))
    raw.execute("UPDATE fairlead_job SET errors = 'junk' WHERE id = ?", (jobs[2].id,))
    raw.commit()
    whole = [jobs[0].id, jobs[2].id, jobs[3].id]
    renewed = await file.extend([(job.id, job.fence) for job in jobs], 20 * SECOND)
    assert [lease.id for lease in renewed] == whole
    assert set(await file.settle([failed(job, job.claimed_at) for job in jobs])) == set(whole)
    for job_id in whole:
        record = await file.admin.find(job_id)
        assert record is not None
        assert [error.message for error in record.errors] == ["it broke"]
    raw.execute("DELETE FROM fairlead_job WHERE id = ?", (jobs[1].id,))
    raw.commit()
    raw.close()


async def test_the_audit_sees_what_it_should(path: Path) -> None:
    """Each check of the audit finds the damage it is there for."""
    clock = ManualClock()
    store = store_for(f"sqlite:///{path}", clock)
    wrongs: Sequence[tuple[str, str]] = [
        (
            "INSERT INTO fairlead_finished SELECT seq, id, queue, task, version, 1, 0, 'done', run_at, "
            "order_at, NULL, enqueued_at, payload, NULL, 0, 0, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL "
            "FROM fairlead_job",
            "live and finished at once",
        ),
        (
            "INSERT INTO fairlead_dead SELECT seq, id, queue, task, version, 1, 0, run_at, order_at, "
            "NULL, enqueued_at, payload, NULL, 0, 0, 0, NULL, NULL, NULL, 0, 'x', NULL "
            "FROM fairlead_job",
            "live and a dead letter at once",
        ),
        ("UPDATE fairlead_job SET lease_until = 5", "does not agree with itself about running"),
        ("UPDATE fairlead_job SET worker = 'w'", "does not agree with itself about running"),
        (
            "UPDATE fairlead_job SET parked = 1, lease_until = 5, worker = 'w', claimed_at = 1, "
            "fence = 1",
            "runs and waits for its time at once",
        ),
        (
            "UPDATE fairlead_job SET lease_until = 5, worker = 'w', claimed_at = 1",
            "runs without a fence",
        ),
        ("UPDATE fairlead_job SET parked = 7", "parked for no reason"),
        ("UPDATE fairlead_job SET parked = -1, park_key = 'x'", "its parked is -1"),
        ("UPDATE fairlead_job SET parked = 32768, park_key = 'x'", "its parked is 32768"),
        ("UPDATE fairlead_job SET parked = 2", "parked for something else than it says"),
        ("UPDATE fairlead_job SET park_key = '1 t'", "parked for something else than it says"),
        (f"UPDATE fairlead_job SET run_at = run_at + {7200 * SECOND}", "before it is due"),
        ("UPDATE fairlead_job SET order_at = order_at - 90000000000", "head start beyond a day"),
        (
            "INSERT INTO fairlead_attempt SELECT value, 'x', 1, 1, 't', 'q', NULL, NULL, 1, 1, 1, "
            "1, 'done', NULL FROM json_each('[1, 2]')",
            "two lines for one fence",
        ),
    ]
    for statement, finding in wrongs:
        await store.put([new_job()])
        assert await store.admin.audit() == []
        raw = sqlite3.connect(path)
        raw.execute(statement)
        raw.commit()
        found = await store.admin.audit()
        assert any(finding in each.problem for each in found), (statement, found)
        for table in ("job", "finished", "dead", "attempt"):
            raw.execute(f"DELETE FROM fairlead_{table}")
        raw.commit()
        raw.close()
    await store.close()


async def test_a_store_that_is_closed_under_its_callers_opens_again(path: Path) -> None:
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    puts = [asyncio.create_task(store.put([new_job()])) for _ in range(100)]
    for _ in range(5):
        await asyncio.sleep(0)
        await store.close()
    assert [are_new(answers) for answers in await asyncio.gather(*puts)] == [[True]] * 100
    assert await store.admin.count() == {"mail": {State.WAITING: 101}}
    await store.close()


def test_each_loop_that_ends_lets_go_of_its_watch(path: Path) -> None:
    store = store_for(f"sqlite:///{path}")

    def instances() -> int:
        return sum("inotify" in os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds())

    async def wait() -> None:
        await store.put([new_job()])
        await store.wait(0)

    asyncio.run(wait())
    before = instances()
    for _ in range(10):
        asyncio.run(wait())
    assert instances() <= before + 1
    asyncio.run(store.close())


def _open_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_an_sqlite_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(ConfigError, match=r"Fairlead needs 3\.35\.0 or newer"):
        Place(Path("x.db"))


async def test_nothing_is_left_open_after_close(path: Path) -> None:
    def open_files() -> int:
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}").startswith(str(path.parent))
            for fd in os.listdir("/proc/self/fd")
        )

    def writers() -> int:
        return sum(thread.name == "fairlead-writer" for thread in threading.enumerate())

    before = writers()
    for _ in range(3):
        store = store_for(f"sqlite:///{path}")
        await store.put([new_job()])
        await store.wait(0)
        await store.close()
    assert open_files() == 0
    assert writers() == before


async def test_a_cancelled_question_keeps_its_connection_until_it_is_over(
    file: SqliteStore,
) -> None:
    """F19: who asks next gets another connection, and so the answer to its own question."""
    asked, go_on = threading.Event(), threading.Event()
    used: list[int] = []

    def slow(connection: sqlite3.Connection) -> None:
        used.append(id(connection))
        asked.set()
        go_on.wait(30)

    first = asyncio.create_task(file._read(slow))
    await asyncio.to_thread(asked.wait, 30)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    await file._read(lambda connection: used.append(id(connection)))

    go_on.set()
    assert used[0] != used[1]
