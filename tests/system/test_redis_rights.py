"""What the users that docs/redis.md shows can do: their work, and nothing else (T8, T17)."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from fairlead import Fairlead, Queue, Retry, State
from fairlead.core.admin import ALL, Filter
from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreDenied
from fairlead.core.job import NewJob
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis import functions
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.functions import FUNCTIONS, LIBRARY
from fairlead.stores.redis.problems import typed
from tests import deeds
from tests.conftest import LOAD, ROLES, rights
from tests.fuzz.redis_roles import VERBS
from tests.servers.redis import RedisServer
from tests.words import are_new, by, claim, done, new_id, new_job, plan

USERS = {"web": "producer", "worker": "worker", "operator": "operator"}
PASSWORD = "secret"


@pytest.fixture(scope="module")
def yard() -> Iterator[RedisServer]:
    """A server with the users of the documentation, word for word, set up by an administrator."""
    users = [f"shop_{name} on >{PASSWORD} {rule}" for name, rule in ROLES.items()]
    with RedisServer(acl=users) as server:
        yield server


@pytest.fixture
def server(yard: RedisServer) -> RedisServer:
    yard.execute("FLUSHALL")
    with Fairlead(yard.url()) as app:
        app.open()
    return yard


def url_of(server: RedisServer, name: str) -> str:
    return server.url(user=f"shop_{name}", password=PASSWORD)


class Shop(Fairlead):
    """An app with two tasks, for one of the users."""

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(url_of(server, name), queues=[Queue("mail"), Queue("reports")])
        self.add = self.task(name="add", queue="mail")(_add)
        self.fail = self.task(name="fail", queue="reports", retry=Retry(attempts=1))(_fail)


def _add(a: int, b: int) -> int:
    return a + b


def _fail() -> None:
    raise ValueError("no")


# What each is there for


def test_a_producer_enqueues_and_asks_for_results(server: RedisServer) -> None:
    with Shop(server, "web") as web, Shop(server, "worker") as worker:
        job = web.add.enqueue(1, 2)
        assert job.status() is State.WAITING
        later = web.add.using(delay=0.01, priority=5, expires=60).enqueue(3, 4)
        stray = web.store.put_blocking([new_job(id="an-id-of-its-own", queue="mail", task="add")])
        assert are_new(stray) == [True]
        calls = [*(web.add.call(n, n) for n in range(600)), web.fail.call()]
        assert web.enqueue_many(calls) == 601
        assert asyncio.run(_run(worker, web, [job.id, later.id])) == [3, 7]
        assert job.status() is State.DONE


async def _run(worker: Fairlead, web: Fairlead, ids: list[Any]) -> list[object]:
    async with worker.worker():
        return [await web.job(job_id).aresult(timeout=20) for job_id in ids]


async def test_a_worker_keeps_the_line_going(server: RedisServer) -> None:
    """Every verb of the line, as a worker uses them."""
    store = store_for(url_of(server, "worker"))
    await store.open()
    jobs = [new_job(), new_job(delay=1), new_job(expires_in=1), new_job(task="unknown")]
    await store.put(jobs)
    await asyncio.sleep(0.001)
    run, *_ = await claim(store, capable={"t": 1})
    assert [each.id for each in await store.extend([(run.id, run.fence)], 20 * SECOND)] == [run.id]
    assert [job.id for job in await store.held(run.worker)]
    assert set(await store.settle([done(run)])) == {run.id}
    for keep in (0, 10**12):
        await store.upkeep(keep)
    assert await store.wait(0.01, for_work=True) is not None
    await store.admin.workers()
    await store.close()


async def test_an_operator_looks_and_acts(server: RedisServer) -> None:
    worker, operator = (store_for(url_of(server, name)) for name in ("worker", "operator"))
    jobs = [new_job(id=new_id("mail")) for _ in range(3)]
    await worker.put(jobs)
    [run] = await claim(worker, slots=1)
    await worker.settle([done(run)])
    for _ in range(40):  # More than one look reads.
        await worker.put([NewJob(new_id("mail"), "t", "mail", f'"{"x" * 250_000}"')])
    await looked_at(operator, run.id)
    assert await deeds.pause(operator, "mail", by())
    assert await deeds.resume(operator, "mail", by())
    assert list(await deeds.cancel(operator, [jobs[1].id], "no", by()))
    assert await deeds.revive(operator, [jobs[1].id], [State.CANCELLED], by())
    assert await deeds.delete(operator, [run.id], [State.DONE], by())
    await deeds.note(operator, by(), 1)
    assert len(await operator.admin.audit_log()) == 6
    assert await operator.admin.audit() == []
    assert await operator.admin.repair(by()) == []
    for store in (worker, operator):
        await store.close()


async def looked_at(store: Store, job_id: Any) -> None:
    """Ask everything that people ask."""
    questions: list[Callable[[], Any]] = [
        *(
            lambda: deeds.jobs(store, ALL),
            store.admin.count,
            lambda: store.admin.groups(Filter(error="x")),
        ),
        *(
            lambda: store.admin.find(job_id),
            lambda: store.admin.attempts(job_id),
            lambda: store.admin.recent(0),
        ),
        *(store.admin.stats, store.admin.workers),
        *(
            lambda: store.admin.ahead(job_id),
            store.admin.condition,
            store.admin.migrations,
            store.admin.audit_log,
        ),
        lambda: store.admin.snapshot(plan(), 100),
    ]
    for question in questions:
        await question()


# What they lack


async def test_who_cannot_settle_does_not_claim(server: RedisServer) -> None:
    """Before, an operator claimed and ran jobs, and settled half: they were in no place then."""
    store, worker = (store_for(url_of(server, name)) for name in ("operator", "worker"))
    job = new_job()
    await worker.put([job])
    with pytest.raises(StoreDenied, match="may not run EXISTS; .* the rights of a worker, as"):
        await claim(store)
    assert [each.id for each in await claim(worker)] == [job.id]
    for each in (store, worker):
        await each.close()


@pytest.mark.parametrize("command", functions._TO_RUN_JOBS)
async def test_a_right_that_is_taken_away_leaves_nothing_half_done(
    server: RedisServer, command: str
) -> None:
    """As after an upgrade, if the new functions run a command that the old rights do not have."""
    server.execute("ACL", "SETUSER", "shop_poor", "on", f">{PASSWORD}", *ROLES["worker"].split())
    store, operator = (store_for(url_of(server, name)) for name in ("poor", "operator"))
    await store.put([new_job(queue=queue) for queue in ("mail", "reports")])
    running = await claim(store, Queue("mail"))
    server.execute("ACL", "SETUSER", "shop_poor", f"-{command}")
    with pytest.raises(StoreDenied, match=f"may not run {command}; "):
        await claim(store, Queue("reports"))
    with pytest.raises(StoreDenied, match=f"may not run {command}; "):
        await store.settle([done(job) for job in running])
    server.execute("ACL", "SETUSER", "shop_poor", f"+{command}")
    assert len(await store.settle([done(job) for job in running])) == 1
    assert len(await claim(store, Queue("reports"))) == 1
    assert await operator.admin.audit() == []
    for each in (store, operator):
        await each.close()
    server.execute("ACL", "DELUSER", "shop_poor")


def test_who_claims_must_have_all_rights_of_those_who_run_jobs() -> None:
    verbs = (verb for verb, each in FUNCTIONS.items() if each.role == "worker")
    of_a_line = {verb for verb in verbs if "leases" in FUNCTIONS[verb].parts}
    wanted = {command for verb in of_a_line for command in _commands(verb)}
    assert {each.lower() for each in functions._TO_RUN_JOBS} == wanted - {"publish", "time"}


@pytest.mark.parametrize(
    ("name", "verb", "role"),
    [
        ("web", lambda store: claim(store), "a worker"),
        ("web", lambda store: deeds.pause(store, "mail", by()), "an operator"),
        ("worker", lambda store: deeds.pause(store, "mail", by()), "an operator"),
    ],
)
async def test_who_lacks_a_role_is_told_which(
    server: RedisServer, name: str, verb: Callable[[Store], Any], role: str
) -> None:
    store = store_for(url_of(server, name))
    with pytest.raises(StoreDenied, match=f"has the rights of {role}, as docs/redis.md lists"):
        await verb(store)
    await store.close()


async def test_who_may_not_tell_news_has_done_its_work_all_the_same(server: RedisServer) -> None:
    """A user whom nobody gave a channel; before, it heard of an error, and the job was there."""
    rule = ROLES["worker"].replace("&fairlead:news ", "")
    server.execute(
        "ACL", "SETUSER", "shop_mute", "on", f">{PASSWORD}", "resetchannels", *rule.split()
    )
    store = store_for(url_of(server, "mute"))
    queues = [Queue("mail"), Queue("reports")]
    assert are_new(await store.put([new_job(queue=queue.name) for queue in queues])) == [True, True]
    claimed = await claim(store, *queues)
    assert len(await store.settle([done(job) for job in claimed])) == 2
    await store.close()
    server.execute("ACL", "DELUSER", "shop_mute")


@pytest.mark.parametrize(
    "words",
    [
        "The user executing the script can't run this command or subcommand script: fairlead_0_put, "
        "on @user_function:9.",
        "ACL failure in script: User shop_web has no permissions to run the 'hsetnx' command script: "
        "fairlead_0_put, on @user_function:9.",
    ],
)
def test_a_right_that_a_function_lacks_is_no_damage(words: str) -> None:
    """As Redis 7.0 says it, and as later ones do."""
    address = Address.of("redis://localhost/0")
    put = ("FCALL", FUNCTIONS["put"].name, 0)
    problem = typed(ResponseError(words), address, 1.0, command=put)
    assert isinstance(problem, StoreDenied)
    assert "has the rights of a producer" in str(problem)
    assert "user_function" not in str(problem)


async def test_a_queue_that_a_user_may_not_touch_keeps_it_from_no_other(
    server: RedisServer,
) -> None:
    rule = ROLES["worker"].replace("{*}", "{mail}")
    server.execute("ACL", "SETUSER", "shop_mail", "on", f">{PASSWORD}", *rule.split())
    queues = [Queue("mail"), Queue("reports")]
    worker, store = (store_for(url_of(server, name)) for name in ("worker", "mail"))
    jobs = [new_job(queue=queue.name) for queue in queues]
    await worker.put(jobs)
    assert [each.id for each in await claim(store, *queues)] == [jobs[0].id]
    for each in (worker, store):
        await each.close()
    server.execute("ACL", "DELUSER", "shop_mail")


# What they may not do

NOBODY = [
    ("EVAL", "return 1", "0"),
    ("EVAL_RO", "return 1", "0"),
    ("EVALSHA", "0" * 40, "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('x', function() end)"),
    ("FUNCTION", "DELETE", LIBRARY.name),
    ("FUNCTION", "FLUSH"),
    ("FUNCTION", "RESTORE", "x"),
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("CONFIG", "REWRITE"),
    ("CONFIG", "RESETSTAT"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("SHUTDOWN",),
    ("SAVE",),
    ("BGREWRITEAOF",),
    ("REPLICAOF", "NO", "ONE"),
    ("MIGRATE", "127.0.0.1", "1", "fairlead:queues", "0", "1"),
    ("RESTORE", "fairlead:queues", "0", "x"),
    ("DUMP", "fairlead:queues"),
    ("DEL", "fairlead:queues"),
    ("UNLINK", "fairlead:queues"),
    ("EXPIRE", "fairlead:queues", "1"),
    ("SORT", "fairlead:{mail}:log"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "LIST"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "shop_web", "+@all"),
    ("MODULE", "LIST"),
    ("MONITOR",),
    ("CLUSTER", "FAILOVER"),
    ("HGET", "other", "x"),
    ("HSET", "other", "x", "1"),
    ("HGETALL", "fairlea:{mail}:bodies"),
    ("HGET", "fairlead", "x"),
    ("HMGET", "fairleads:{x}:bodies", "y"),
    ("HMGET", "fairlead:other:{x}:bodies", "y"),
    ("PUBLISH", "other", "word"),
    ("PUBLISH", "fairlead:other", "word"),
    ("SUBSCRIBE", "other"),
    ("PSUBSCRIBE", "*"),
]
"""Code, settings, other keys, whatever stops or changes the server."""
NOT_A_PRODUCER = [
    ("INFO",),
    ("FUNCTION", "LIST"),
    # To list ids, or other people's jobs.
    ("HGETALL", "fairlead:{mail}:bodies"),
    ("HKEYS", "fairlead:{mail}:bodies"),
    ("HVALS", "fairlead:{mail}:bodies"),
    ("HSCAN", "fairlead:{mail}:bodies", "0"),
    ("HRANDFIELD", "fairlead:{mail}:bodies", "5"),
    ("HGETALL", "fairlead:strays"),
    ("ZRANGE", "fairlead:{mail}:ready", "0", "-1"),
    ("ZRANGEBYSCORE", "fairlead:{mail}:due", "-inf", "+inf"),
    ("ZPOPMIN", "fairlead:{mail}:ready"),
    ("ZSCAN", "fairlead:{mail}:ready", "0"),
    ("LRANGE", "fairlead:{mail}:log", "0", "-1"),
    # To remove jobs, or to end them.
    ("ZREM", "fairlead:{mail}:ready", "x"),
    ("HDEL", "fairlead:{mail}:bodies", "x"),
    ("HSET", "fairlead:{mail}:standings", "x", "y"),
    ("HSET", "fairlead:{mail}:paused", "x", "y"),
    ("ZADD", "fairlead:{mail}:done", "1", "x"),
    ("HSET", "fairlead:schema", "99", "0"),
    ("HSET", "fairlead:workers", "w", "x"),
    ("HGETALL", "fairlead:workers"),
    ("HGET", "fairlead:{mail}:acted", "x"),
    ("HSET", "fairlead:{mail}:acted", "x", "y"),
]
NOT_A_WORKER = [
    ("INFO",),
    ("FUNCTION", "LIST"),
    ("HSET", "fairlead:{mail}:acted", "x", "y"),
    ("HDEL", "fairlead:{mail}:acted", "x"),
    ("HGET", "fairlead:{*}:acted", "x"),
    ("ZADD", "fairlead:{mail}:acts", "1", "x"),
    ("ZREM", "fairlead:{mail}:acts", "x"),
    ("HSET", "fairlead:schema", "99", "0"),
    ("INCR", "fairlead:number"),
]


NOT_AN_OPERATOR = [
    ("HGET", "fairlead:{mail}:other", "x"),
    ("HGET", "fairlead:{mail}:bodies2", "x"),
    ("HSET", "fairlead:unreadable:other", "x", "y"),
]


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("web", NOBODY + NOT_A_PRODUCER),
        ("worker", NOBODY + NOT_A_WORKER),
        ("operator", NOBODY + NOT_AN_OPERATOR),
    ],
    ids=USERS.values(),
)
def test_a_user_may_do_nothing_else(
    server: RedisServer, name: str, commands: list[tuple[str, ...]]
) -> None:
    server.execute("HSET", "other", "x", "theirs")
    for command in commands:
        with pytest.raises(NoPermissionError):
            server.execute(*command, user=f"shop_{name}", password=PASSWORD)
    assert server.execute("HGET", "other", "x") == "theirs"


@pytest.mark.parametrize("verb", sorted(set(FUNCTIONS) - {"put", "records", "here", "register"}))
def test_a_producer_calls_no_verb_of_others(server: RedisServer, verb: str) -> None:
    """A server asks for rights on every key that a function gets, before it runs."""
    function = FUNCTIONS[verb]
    keys = [f"fairlead:{{mail}}:{part}" for part in function.parts] or ["fairlead:workers"]
    if verb == "count":
        keys = ["fairlead:number"]
    with pytest.raises(NoPermissionError):
        server.execute(
            *(function.command, function.name, len(keys), *keys),
            user="shop_web",
            password=PASSWORD,
        )


@pytest.mark.parametrize(
    "verb", sorted(verb for verb, each in FUNCTIONS.items() if "acted" in each.parts)
)
def test_a_worker_does_nothing_that_people_do(server: RedisServer, verb: str) -> None:
    function = FUNCTIONS[verb]
    keys = [f"fairlead:{{mail}}:{part}" for part in function.parts]
    with pytest.raises(NoPermissionError):
        server.execute(
            *(function.command, function.name, len(keys), *keys),
            user="shop_worker",
            password=PASSWORD,
        )


def _commands(verb: str) -> set[str]:
    """The commands that a function runs, itself and by the functions that it calls."""
    code = LIBRARY.code.split("\ndo -- ")
    shared, *verbs = (re.sub("--.*", "", each) for each in code)
    [text] = [each for each in verbs if f"LIBRARY .. '_{verb}'" in each]
    parts = re.findall(r"^(?:local )?function ([\w.]+)(.*?)^end$", shared, re.MULTILINE | re.DOTALL)
    helpers = dict(parts)
    seen: set[str] = set()
    while new := {
        name for name in helpers if name not in seen and re.search(rf"(?<![\w.]){name}\b", text)
    }:
        seen |= new
        text += "".join(helpers[name] for name in new)
    found = re.findall(r"\b(?:call\(|call, |many\()'([A-Z]+)'|'([HZ]SCAN)'", text)
    return {name.lower() for pair in found for name in pair if name}


def _granted(rule: str) -> set[str]:
    return set(re.findall(r"\+([a-z_|]+)", rule))


_OF_A_ROLE = {
    "web": VERBS["producer"],
    "worker": (*VERBS["producer"], *VERBS["worker"]),
    "operator": (*VERBS["producer"], *VERBS["operator"]),
}


@pytest.mark.parametrize("name", USERS)
def test_a_user_may_run_what_its_functions_run(name: str) -> None:
    wanted = {command for verb in _OF_A_ROLE[name] for command in _commands(verb)}
    assert len(wanted) > 5
    assert wanted - _granted(ROLES[name]) == set()


@pytest.mark.parametrize("name", USERS)
def test_no_right_is_shown_that_nobody_needs(name: str) -> None:
    folder = Path(functions.__file__).parent
    texts = [each.read_text() for each in folder.glob("*.py") if each.name != "floor.py"]
    words = {word.lower() for text in texts for word in re.findall(r'"([A-Z_]{3,})"', text)}
    wanted = {command for verb in _OF_A_ROLE[name] for command in _commands(verb)}
    by_driver = {"select", "client|setname", "function|list", "cluster|slots"}
    assert _granted(ROLES[name]) - wanted - words - by_driver == set()


SCHEMA = "fairlead:schema"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ([("DEL", SCHEMA), ("SET", SCHEMA, "x")], "schema is of a type that is not ours: moved"),
        ([("DEL", SCHEMA)], "nothing was damaged"),  # Whoever may write it notes it again.
        ([("HSET", SCHEMA, "1", "soon")], "noted as soon, cannot be: wrote it anew"),
        ([("DEL", SCHEMA), ("HSET", SCHEMA, "9998", "0")], "9998 of our keys, noted as 0, cannot"),
        ([("HSET", SCHEMA, "9998", "0")], "version 9998 of our keys, noted as 0, cannot be"),
    ],
)
def test_a_damaged_note_of_the_version_locks_nobody_out(
    server: RedisServer, damage: list[tuple[str, ...]], told: str
) -> None:
    with Shop(server, "web") as web:
        web.add.enqueue(0, 0)
    for command in damage:
        server.execute(*command)
    with Shop(server, "web") as web, Shop(server, "worker") as worker:
        job = web.add.enqueue(1, 2)
        assert asyncio.run(_run(worker, web, [job.id])) == [3]
        status = worker.bridge.run(worker.store.admin.migrations())
        assert [step.applied_at is None for step in status] == [False, False]
    url = url_of(server, "operator")
    command = [sys.executable, "-m", "fairlead", "doctor", "--repair", "--url", url]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told in run.stdout
    assert run.stderr == ""
    with Shop(server, "operator") as operator:
        assert operator.bridge.run(operator.store.admin.audit()) == []
        assert set(server.execute("HGETALL", SCHEMA)) == {"1"}


def test_two_prefixes_share_a_server_and_nothing_else(server: RedisServer) -> None:
    """Keys of one app are out of another's reach, and each sees its own jobs only."""
    for name in ("one", "one.two"):
        server.execute("ACL", "SETUSER", name, "reset", "on", ">pw", *rights(f"{name}:"))
    server.execute(*LOAD)
    apps = {
        name: Fairlead(server.url(user=name, password="pw", prefix=name))
        for name in ("one", "one.two")
    }
    jobs = {name: app.task(name="add")(_add).enqueue(1, 2) for name, app in apps.items()}
    for name, app in apps.items():
        [job] = app.bridge.run(deeds.jobs(app.store, ALL))
        assert job.id == jobs[name].id
    with pytest.raises(Exception, match="ACL SETUSER"):
        Fairlead(server.url(user="one", password="pw", prefix="one.two")).open()
    for app in apps.values():
        app.close()


def test_what_is_said_of_a_hostile_producer_is_true(server: RedisServer) -> None:
    """SECURITY.md and docs/redis.md name what these rights cannot stop; it should stay a short list."""
    who = {"user": "shop_web", "password": PASSWORD}
    theirs = NewJob(new_id("mail"), "add", "mail", "[[1,2],{}]")
    with Shop(server, "worker") as worker:
        worker.store.put_blocking([theirs])
    assert server.execute("HGET", "fairlead:{mail}:bodies", theirs.id, **who)
    server.execute("HSET", "fairlead:{mail}:bodies", theirs.id, "other", **who)
    server.execute("ZADD", "fairlead:{mail}:ready", "0", theirs.id, **who)
    server.execute("HSET", "fairlead:{mail}:settings", "log_start", "1000", **who)
    server.execute("HSET", "fairlead:{mail}:bodies", theirs.id, "of another app", database=1, **who)
    assert server.execute("HGET", "fairlead:{a}:of:others:{b}:bodies", "x", **who) is None


async def test_a_hostile_producer_cannot_let_a_job_run_again(server: RedisServer) -> None:
    """It may give an ended job a place in the order; a claim sees that it has ended."""
    worker = store_for(url_of(server, "worker"))
    await worker.put([new_job(id=new_id("mail"))])
    [job] = await claim(worker)
    assert len(await worker.settle([done(job)])) == 1
    server.execute(
        *("ZADD", "fairlead:{mail}:ready", "1", job.id), user="shop_web", password=PASSWORD
    )
    assert await claim(worker) == []
    found = await worker.admin.find(job.id)
    assert found is not None
    assert (found.state, found.attempt) == (State.DONE, 1)
    await worker.close()
