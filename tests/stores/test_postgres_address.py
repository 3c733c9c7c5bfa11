"""The URL of a PostgreSQL store: what it may say, what it means, and that it keeps its secret."""

import os
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead import ConfigError, Fairlead, FairleadWarning, StoreUnavailable
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from tests.servers.postgres import PostgresServer
from tests.words import new_job

CANARY = "c4n4ry"


def refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as problem:
        store_for(url)
    assert CANARY not in str(problem.value)


# What it may say


def test_a_url_names_server_database_and_schema() -> None:
    address = Address.of(f"postgresql://ada:{CANARY}@localhost:5433/shop?schema=jobs&timeout=2.5")
    told = {name: address.parameters[name] for name in ("user", "host", "port", "dbname")}
    assert told == {"user": "ada", "host": "localhost", "port": "5433", "dbname": "shop"}
    assert address.parameters["password"] == CANARY
    assert (address.schema, address.timeout) == ("jobs", 2.5)
    assert address.listen == address.parameters
    assert address.url == "postgresql://ada@localhost:5433/shop?schema=jobs"


def test_what_a_url_leaves_open_has_a_default_and_what_it_says_counts() -> None:
    bare = Address.of("postgres:///shop")
    assert (bare.schema, bare.timeout) == ("fairlead", 10.0)
    assert bare.parameters["connect_timeout"] == "5"
    assert bare.parameters["application_name"] == "fairlead"
    own = Address.of("postgresql:///shop?connect_timeout=30&application_name=till")
    assert own.parameters["connect_timeout"] == "30"
    assert own.parameters["application_name"] == "till"


def test_special_characters_pass_through_every_part() -> None:
    secret = "p@ss/w?rd#%&="
    url = (
        f"postgresql://{quote('a@b', safe='')}:{quote(secret, safe='')}@localhost/{quote('Till 1')}"
    )
    address = Address.of(url)
    found = [address.parameters[name] for name in ("user", "password", "dbname")]
    assert found == ["a@b", secret, "Till 1"]
    assert Address.of(address.url).parameters["dbname"] == "Till 1"
    assert Address.of(address.url).parameters["user"] == "a@b"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("shema=x", "no option 'shema' .did you mean 'schema'"),
        ("sslmod=require", "no option 'sslmod' .did you mean 'sslmode'"),
        ("durability=fast", "no option 'durability'"),
        ("listen=never", "listen= takes on, off, or the URL of the server behind the pooler"),
        ("listen=mysql%3A%2F%2Fx", "listen= takes on, off, or the URL"),
        (f"listen=postgresql%3A%2F%2Fa%3A{CANARY}%40h%3Ax%2Fd", "cannot be read"),
        ("timeout=soon", "timeout=soon is not a number of seconds; write timeout=10"),
        ("timeout=0", "timeout=0 is not a number"),
        ("timeout=-1", "timeout=-1 is not a number"),
        ("timeout=nan", "timeout=nan is not a number"),
        ("timeout=inf", "timeout=inf is not a number"),
        ("schema=", "schema='' cannot be the name of our schema"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(query: str, words: str) -> None:
    refused(f"postgresql://ada:{CANARY}@localhost/shop?{query}", words)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{CANARY}@[localhost/shop",
        f"postgresql://ada:{CANARY}@localhost:port/shop",
        f"postgresql://ada:{CANARY}@localhost:99999999/shop",
        f"postgresql://ada:{CANARY}#1@localhost/shop?schema=jobs",
        f"postgresql://ada:1#{CANARY}@localhost/shop",
        f"postgresql://ada:{CANARY}%zz@localhost/shop",
        f"postgresql://ada:{CANARY}@localhost/shop%00",
        f"postgresql:ada:{CANARY}@localhost/shop",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    refused(url, "the store's URL cannot be read")


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,60}", fullmatch=True))
@example("pg_jobs")
@example('x"; DROP SCHEMA public; --')
@example("x\n")
@example("\u017fchema")
def test_a_schema_is_a_plain_name_or_refused(name: str) -> None:
    plain = (
        name.isascii()
        and name.isidentifier()
        and len(name) <= 48
        and not name.lower().startswith("pg_")
    )
    url = f"postgresql:///shop?schema={quote(name, safe='', errors='surrogatepass')}"
    if plain:
        address = Address.of(url)
        assert address.schema == name
        assert address.quoted_schema == f'"{name}"'
        assert Address.of(address.url).schema == name
    else:
        with pytest.raises(ConfigError, match="take up to 48 ASCII letters"):
            Address.of(url)


def test_news_are_heard_on_the_same_server_elsewhere_or_not_at_all() -> None:
    behind = quote("postgresql://ada@localhost:5432/shop", safe="")
    assert Address.of("postgresql:///shop?listen=off").listen is None
    elsewhere = Address.of(f"postgresql://ada@localhost:6432/shop?listen={behind}")
    assert elsewhere.listen is not None
    assert (elsewhere.listen["port"], elsewhere.parameters["port"]) == ("5432", "6432")


# Who is trusted


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///shop",
        "postgresql://localhost/shop",
        "postgresql://127.0.0.1/shop",
        "postgresql://127.8.8.8/shop",
        "postgresql://[::1]/shop",
        "postgresql://%2Fvar%2Frun%2Fpostgresql/shop",
        "postgresql://localhost,127.0.0.1/shop",
    ],
)
def test_a_server_on_this_machine_need_prove_nothing(url: str) -> None:
    assert "sslmode" not in Address.of(url).parameters


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example/shop",
        "postgresql://10.0.0.7/shop",
        "postgresql://localhost.example/shop",
        "postgresql://127.0.0.1.example/shop",
        "postgresql://localhost,db.example/shop",
        "postgresql://[2001:db8::1]/shop",
        "postgresql://localhost/shop?hostaddr=10.0.0.7",
        "postgresql:///shop?host=db.example",
        "postgresql://db.example/shop?hostaddr=127.0.0.1",
        "postgresql:///shop?hostaddr=10.0.0.7",
    ],
)
def test_a_server_elsewhere_must_prove_who_it_is(url: str) -> None:
    assert Address.of(url).parameters["sslmode"] == "verify-full"
    behind = Address.of(f"postgresql:///shop?listen={quote(url, safe='')}").listen
    assert behind is not None
    assert behind["sslmode"] == "verify-full"


def test_a_server_that_the_environment_names_is_looked_at_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert Address.of("postgresql:///shop").parameters["sslmode"] == "verify-full"
    assert "sslmode" not in Address.of("postgresql://localhost/shop").parameters
    monkeypatch.setenv("PGSSLMODE", "require")
    assert "sslmode" not in Address.of("postgresql:///shop").parameters


SERVICES = """
[near]
host=localhost
[far]
host=db.far
dbname=shop
[far-required]
host=db.far
sslmode=require
[far-verified]
host=db.far
sslmode=verify-ca
"""


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service file, which names servers for libpq."""
    (tmp_path / "services").write_text(SERVICES)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))


@pytest.mark.usefixtures("services")
def test_a_server_that_a_service_names_must_prove_who_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Address.of("postgresql:///?service=far")
    assert (far.parameters["sslmode"], far.doubt) == ("verify-full", None)
    assert far.url == "postgresql://db.far/"
    assert "sslmode" not in Address.of("postgresql:///?service=near").parameters
    verified = Address.of("postgresql:///?service=far-verified")
    assert ("sslmode" in verified.parameters, verified.doubt) == (False, None)
    assert "sslmode=require: nobody checks" in str(
        Address.of("postgresql:///?service=far-required").doubt
    )
    monkeypatch.setenv("PGSERVICE", "far")
    assert Address.of("postgresql:///shop").parameters["sslmode"] == "verify-full"
    assert "sslmode" not in Address.of("postgresql://localhost/shop").parameters


def test_who_says_otherwise_is_believed_and_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, words in (
        ("disable", "whoever is on the way can read jobs and the password"),
        ("allow", "whoever is on the way can read jobs and the password"),
        ("prefer", "whoever is on the way can read jobs and the password"),
        ("require", "nobody checks the certificate"),
    ):
        url = f"postgresql://ada:{CANARY}@db.example/shop?sslmode={mode}"
        assert Address.of(url).parameters["sslmode"] == mode
        with pytest.warns(FairleadWarning, match=f"sslmode={mode}: {words}") as warned:
            store_for(url)
        assert "write sslmode=verify-full in the store's URL" in str(warned[0].message)
        assert CANARY not in str(warned[0].message)
        behind = f"postgresql:///shop?listen={quote(url, safe='')}"
        with pytest.warns(FairleadWarning, match=f"sslmode={mode}: {words}"):
            store_for(behind)
        assert Address.of(f"postgresql://localhost/shop?sslmode={mode}").doubt is None
    assert Address.of("postgresql://db.example/shop?sslmode=verify-full").doubt is None
    monkeypatch.setenv("PGSSLMODE", "prefer")
    with pytest.warns(FairleadWarning, match="sslmode=prefer"):
        store_for("postgresql://db.example/shop")


def test_a_warning_points_to_the_program_that_names_the_store() -> None:
    with pytest.warns(FairleadWarning, match="is not protected") as warned:
        Fairlead("postgresql://db.example/shop?sslmode=require")
    assert warned[0].filename == __file__


CERTIFY = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=db.example "
    "-addext subjectAltName=DNS:db.example -keyout server.key -out server.crt"
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that is db.example by a certificate nobody else has signed; ada comes by TLS only."""
    with PostgresServer(hba=["hostnossl all ada 127.0.0.1/32 reject"]) as server:
        subprocess.run(CERTIFY.split(), cwd=server.data, check=True, capture_output=True)
        owner = server.data.stat()
        for name in ("server.key", "server.crt"):
            os.chown(server.data / name, owner.st_uid, owner.st_gid)
            (server.data / name).chmod(0o600)
        server.execute("ALTER SYSTEM SET ssl = on")
        server.execute(f"CREATE ROLE ada LOGIN PASSWORD '{CANARY}'")
        server.execute("GRANT CREATE ON DATABASE postgres TO ada")
        server.restart()
        yield server


def remote(server: PostgresServer, host: str = "db.example", password: str = CANARY) -> str:
    """Return a URL that takes this server for one elsewhere."""
    return f"postgresql://ada:{password}@{host}:{server.port}/postgres?hostaddr=127.0.0.1"


async def opened(url: str) -> Store:
    store = store_for(url)
    await store.open()
    return store


async def unavailable(url: str, words: str) -> None:
    with pytest.raises(StoreUnavailable, match=words) as problem:
        await opened(url)
    everything = "".join(traceback.format_exception(problem.value))
    assert CANARY not in everything


async def test_a_certificate_that_nobody_vouches_for_is_refused(guarded: PostgresServer) -> None:
    await unavailable(remote(guarded), "certificate.*name its authority with sslrootcert=")


async def test_a_certificate_is_accepted_by_who_knows_its_authority(
    guarded: PostgresServer,
) -> None:
    store = await opened(f"{remote(guarded)}&sslrootcert={guarded.data}/server.crt")
    condition = await store.admin.condition()
    assert condition.facts["tls"] == "on"
    assert CANARY not in f"{condition} {store.url}"
    await store.close()


async def test_the_certificate_of_another_server_is_refused(guarded: PostgresServer) -> None:
    url = f"{remote(guarded, 'other.example')}&sslrootcert={guarded.data}/server.crt"
    await unavailable(url, 'certificate.*"other.example"')


async def test_doctor_tells_of_a_certificate_that_nobody_checks(guarded: PostgresServer) -> None:
    with pytest.warns(FairleadWarning):
        store = await opened(f"{remote(guarded)}&sslmode=require")
    condition = await store.admin.condition()
    await store.close()
    [finding] = [each for each in condition.findings if "not protected" in each.problem]
    assert "nobody checks the certificate" in finding.problem
    assert "sslmode=verify-full" in finding.remedy


async def test_a_server_elsewhere_without_tls_is_refused(postgres_server: PostgresServer) -> None:
    await unavailable(remote(postgres_server), "does not support SSL.*must prove who it is")


# The secret


async def test_a_wrong_password_is_not_repeated(guarded: PostgresServer) -> None:
    url = guarded.url(user="ada", password=f"{CANARY}!")
    await unavailable(f"{url}?sslmode=require", "check user and password in the store's URL")


async def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    url = f"postgresql://ada:{CANARY}@127.0.0.1:1/shop"
    await unavailable(url, "is the server running, and reachable from here")


async def test_a_database_that_is_not_there_is_told(guarded: PostgresServer) -> None:
    url = guarded.url("nowhere", user="ada", password=CANARY, sslmode="require")
    await unavailable(url, "create it, or name another in the store's URL")


def test_an_address_that_is_printed_keeps_its_password() -> None:
    address = Address.of(f"postgresql://ada:{CANARY}@localhost/shop")
    store = store_for(f"postgresql://ada:{CANARY}@localhost/shop")
    assert CANARY not in f"{address!r} {address} {store!r} {store.url}"
    assert "ada@localhost" in repr(address)


def test_tls_that_the_server_does_not_speak_is_told_as_that(
    postgres_server: PostgresServer,
) -> None:
    """It is no matter of authorities, which a URL could name."""
    store = store_for(postgres_server.url(sslmode="require"))
    with pytest.raises(StoreUnavailable, match="does not support SSL") as told:
        store.put_blocking([new_job()])
    assert "switch TLS on there (ssl = on)" in str(told.value)
    assert "sslrootcert" not in str(told.value)
