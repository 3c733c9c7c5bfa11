"""The URL of a store: no part of its password is told, whatever it is made of."""

import subprocess
import sys
import time
from urllib.parse import SplitResult, urlsplit

import pytest

from fairlead import ConfigError, Fairlead
from fairlead.config import Settings
from fairlead.core.passwords import without_passwords
from fairlead.core.text import brief
from fairlead.core.url import split_url
from fairlead.stores import store_for

SECRETS = ["c4n/4ry", "c4n?4ry", "c4n#4ry", "c4n?4ry=1&k", "1/4ry", "c4n@4ry/", "4ry[", "4ry℀"]
PLACES = ["postgresql://ada:{}@db.example/shop", "postgres://:{}@[::1]:5432/shop?schema=x"]
REDIS = ["redis://:{}@cache.example/0", "rediss://ada:{}@cache/1?prefix=x", "unix://:{}@/run/redis"]


def parts_of(secret: str) -> list[str]:
    return [part for part in ("c4n", "4ry") if part in secret]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES + REDIS)
def test_a_password_that_cuts_the_url_apart_is_refused_without_a_word_of_it(
    place: str, secret: str
) -> None:
    problem: ConfigError | None = None
    told = ""
    try:
        told = store_for(place.format(secret)).url
    except ConfigError as refusal:
        problem, told = refusal, f"{refusal} {refusal!r} {refusal.__context__!r}"
    assert not [part for part in parts_of(secret) if part in told]
    assert problem is None or "%23" in str(problem)


def test_a_password_with_an_at_sign_is_not_taken_for_a_host() -> None:
    with pytest.raises(ConfigError, match="%40") as problem:
        store_for("postgresql://ada:c4n@4ry@db.example/shop")
    assert "4ry" not in str(problem.value)


def test_nor_is_one_in_a_url_behind_a_comma_among_the_options() -> None:
    with pytest.raises(ConfigError, match="an @ behind the place"):
        split_url("redis://a/0?prefix=redis://:c4n,4ry@b")


def test_a_password_among_the_options_is_not_told_either() -> None:
    with pytest.raises(ConfigError, match="written %26") as problem:
        store_for("postgresql://localhost/shop?password=c4n&4ry")
    assert "4ry" not in str(problem.value)


@pytest.mark.parametrize("secret", SECRETS)
def test_nor_where_a_file_is_named_like_a_server(secret: str) -> None:
    with pytest.raises(ConfigError) as problem:
        store_for(f"sqlite://ada:{secret}@host/jobs.db")
    assert not [part for part in parts_of(secret) if part in str(problem.value)]


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:c4n 4ry@h/0",
        "redis://u:c4n\t4ry@h/0",
        "postgresql://u:c4n4ry\n@h/d",
        "redis://u:c4n?4ry",
        "redis://u:123?4ry",
        "rediss://u:c4n?4ry=1",
        "postgresql://u:c4n?4ry",
        "unix://u:c4n?4ry",
    ],
)
def test_what_is_cut_apart_by_a_space_or_for_want_of_a_host_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read.*a space as %20") as problem:
        store_for(url)
    assert not [part for part in ("c4n", "4ry") if part in str(problem.value)]


def test_what_is_no_text_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match="not by a value of type bytes"):
        store_for(b"redis://:c4n4ry@cache")  # type: ignore[arg-type]


def test_settings_that_are_printed_keep_the_password() -> None:
    settings = Settings("shop:app", "postgresql://ada:c4n4ry@db/shop")
    assert repr(settings) == "<settings of app 'shop:app' on postgresql://…>"
    assert "c4n4ry" not in f"{settings} {Fairlead('memory://', settings=settings)!r}"


@pytest.mark.parametrize("url", ["sqlite:///a@b.db", "memory://", "postgresql://ada:x@h/d"])
def test_what_can_be_read_is_read(url: str) -> None:
    assert split_url(url).geturl().startswith(url.partition(":")[0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("see postgresql://ada:s3/c?r#et@db/shop.", "see postgresql://ada:***@db/shop."),
        ("redis://:s3cret@cache and redis://x", "redis://:***@cache and redis://x"),
        ("redis://ada:s3@cr@et@cache/0", "redis://ada:***@cache/0"),
        ("rediss+cluster://u:p@a,b", "rediss+cluster://u:***@a,b"),
        ("postgres://db/x?password=s3cret&y=1", "postgres://db/x?password=***&y=1"),
        ("http://svc:80/users/ada@example.com", "http://svc:80/users/ada@example.com"),
        ("password=x without a URL", "password=*** without a URL"),
        ("host=h password = 'c4n 4ry' user=x", "host=h password = *** user=x"),
        ("postgres://db?password=c4'n4ry&y=1", "postgres://db?password=***&y=1"),
        ("postgres://db?p%61ssword=c4n4ry", "postgres://db?p%61ssword=***"),
        (
            "postgresql://u:ok@pooler/d?listen=postgresql%3A%2F%2Fu%3Ac4n4ry%40h2%2Fd",
            "postgresql://u:***@pooler/d?listen=postgresql%3A%2F%2Fu%3A***%40h2%2Fd",
        ),
        ("listen=postgresql%3A//u%3Ac4n4ry%40h2/d", "listen=postgresql%3A//u%3A***%40h2/d"),
        ("%3a%2f%2fh%2fd%3fpassword%3dc4n4ry", "%3a%2f%2fh%2fd%3fpassword%3d***"),
        ("redis://u:c4n 4ry@h/0 for a@b", "redis://u:***@h/0 for a@b"),
        ("redis://u:c4n?4ry", "redis://u:***"),
        ("postgresql+psycopg://u:c4n4ry@h", "postgresql+psycopg://u:***@h"),
        ("valkey://u:c4n/4ry@h", "valkey://u:***@h"),
        ("postgresql://ada%40azure:c4n4ry@h", "postgresql://ada%40azure:***@h"),
        ("http://ada:c4n4ry@svc/x@y", "http://ada:***@svc/x@y"),
        ("redis://cache:6379: no answer, ask a@b", "redis://cache:6379: no answer, ask a@b"),
        ("redis+cluster://[::1]:1,b:2 x", "redis+cluster://[::1]:1,b:2 x"),
        ("postgresql%3A%2F%2Fh2%3A5432%2Fd", "postgresql%3A%2F%2Fh2%3A5432%2Fd"),
    ],
)
def test_passwords_in_a_text_become_stars(text: str, told: str) -> None:
    assert without_passwords(text) == told


LONG = f"redis://ada:c4n4ry{'x@4ry4ry4ry4ry' * 20}@cache"


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "list", "redis://:c4n4ry@cache"],
        ["jobs", "list", "postgresql://ada:c4n4ry@db/shop"],
        ["jobs", "show", "redis://:c4n4ry@c"],
        ["enqueue", "json:loads", "redis://:c4n4ry@cache", "{}"],
        ["redis://:c4n4ry@cache"],
        ["jobs", "list", "--url", "postgresql://ada:c4n?4ry@db/shop"],
        ["jobs", "list", "--limit", "postgresql://ada:c4n?4ry@db/shop"],
        ["jobs", "list", "--since", "postgresql://ada:c4n#4ry@db/shop"],
        ["demo", "postgresql://ada:c4n/4ry@db/shop"],
        ["jobs", "list", "--queue", LONG],
        ["jobs", "show", LONG],
        [LONG],
        [f"--{LONG}"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_a_url_in_the_wrong_place_is_not_repeated(arguments: list[str]) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, check=False
    )
    assert answer.returncode in (1, 2, 3)
    assert "Traceback" not in answer.stderr
    assert "4ry" not in answer.stdout + answer.stderr, answer.stderr


@pytest.mark.parametrize("size", [1, 512, 513, 5_000, 1_000_000])
def test_a_password_of_any_length_is_hidden(size: int) -> None:
    """Cloud services give out tokens of kilobytes for passwords."""
    secret = "S" * size
    told = without_passwords(
        f"redis://ada:{secret}@cache:1/0, postgresql://h/db?user=ada&sslpassword={secret}&x=1"
    )
    assert told == "redis://ada:***@cache:1/0, postgresql://h/db?user=ada&sslpassword=***&x=1"


@pytest.mark.parametrize(
    "part",
    [
        *("redis://a:", "redis://a:@", "redis://", "password=", "@:/", "://a:b ", "://a:1/"),
        *("%3A%2F%2Fa%3A1%2F", "%3A%2F%2Fa", "http://a:", "http:%2F%2Fa:x", "password='"),
        *("://[", "x"),
    ],
)
def test_no_text_takes_long_to_be_searched_for_passwords(part: str) -> None:
    began = time.process_time()
    without_passwords("redis://" + part * 200_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("url", "place", "path"),
    [
        ("redis+cluster://ada:x@a:1,[::1]:2?prefix=p", "ada:x@a:1,[::1]:2", ""),
        ("postgresql://a,[::1]:2,b/shop?schema=s", "a,[::1]:2,b", "/shop"),
        ("redis://ada:x,y@a/1,2", "ada:x,y@a", "/1,2"),
        ("sqlite:///a,b.db?durability=fast", "", "/a,b.db"),
        ("redis://a/0?prefix=x://b,c", "a", "/0"),
    ],
)
def test_a_host_in_brackets_may_stand_behind_others(
    monkeypatch: pytest.MonkeyPatch, url: str, place: str, path: str
) -> None:
    """Python refuses it since its security releases of 2025."""

    def strict(text: str) -> SplitResult:
        parts = urlsplit(text)
        before, bracket, _ = parts.netloc.rpartition("@")[2].partition("[")
        if before and bracket:
            raise ValueError("Invalid IPv6 URL")
        return parts

    monkeypatch.setattr("fairlead.core.url.urlsplit", strict)
    parts = split_url(url)
    assert (parts.netloc, parts.path, parts.query) == (place, path, url.partition("?")[2])


@pytest.mark.parametrize(
    "value", [LONG, LONG.replace("x@", "x"), [LONG], {"url": LONG}, "x" * 90 + LONG]
)
def test_a_quoted_value_ends_where_its_password_begins(value: object) -> None:
    """To cut a URL takes away the @ by which its password would be known."""
    assert "4ry" not in brief(value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///{}",
        "sqlite:///jobs.db?{}=1",
        "sqlite:///jobs.db?durability={}",
        "postgresql://h/db?{}=1",
        "redis://h/0?prefix={}",
        "{}://h",
    ],
)
def test_a_url_of_ten_megabytes_is_refused_without_work(url: str) -> None:
    huge = url.format("x" * 10_000_000)
    began = time.process_time()
    with pytest.raises(ConfigError, match="characters, the limit is 16,384") as problem:
        Fairlead(huge)
    assert time.process_time() - began < 0.5
    assert len(str(problem.value)) < 100


@pytest.mark.parametrize("url", ["sqlite:///jobs.db?{}=1", "sqlite:///jobs.db?durability={}"])
def test_an_option_is_quoted_only_in_part(url: str) -> None:
    with pytest.raises(ConfigError) as problem:
        Fairlead(url.format("x" * 10_000))
    assert len(str(problem.value)) < 500
