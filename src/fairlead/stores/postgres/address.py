"""Where the server is, and how to reach it: the parts of a `postgresql://` URL."""

import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fairlead.core.errors import ConfigError, did_you_mean
from fairlead.core.text import brief, cut
from fairlead.core.url import parts_of, split_url

_OURS = ("schema", "listen", "timeout", "owner")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_DEFAULTS = {
    "application_name": "fairlead",
    "connect_timeout": "5",
    # A peer that fell silent is given up within ten seconds, whichever side speaks next.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
# What libpq takes when nobody says anything, and what a service file that says it means here too.
_UNSET = "prefer"
_IN_THE_CLEAR = "whoever is on the way can read jobs and the password, and change them"
_DOUBTS = {
    "disable": _IN_THE_CLEAR,
    "allow": _IN_THE_CLEAR,
    "prefer": _IN_THE_CLEAR,
    "require": "nobody checks the certificate, so whoever is on the way can pass for the server",
}
REMEDY = (
    "write sslmode=verify-full in the store's URL, and sslrootcert= if its authority is your own"
)


class Address(msgspec.Struct, frozen=True):
    """A server, a database and a schema in it.

    `host` is where the server is, whether the URL, a service file or the environment says so.
    `doubt` says what nobody protects on the way there.

    `listen` says where to hear of news: on the same server, at another URL (past a
    pooler, which cannot pass them on), or nowhere (None), which means to poll.
    `timeout` is how many seconds an answer may take. `owner` is a role that is trusted to own
    the schema.
    """

    parameters: Mapping[str, Any]
    schema: str = "fairlead"
    listen: Mapping[str, Any] | None = None
    timeout: float = 10.0
    host: str = "localhost"
    doubt: str | None = None
    owner: str | None = None

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL."""
        parts = split_url(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: options.pop(name) for name in _OURS if name in options}
        given = _given(url, options)
        way = _way(given)
        parameters = _DEFAULTS | given | way.proof
        listen, doubt = _listener(ours.get("listen", "on"), parameters)
        return cls(
            parameters,
            _schema(ours.get("schema", "fairlead")),
            listen,
            _timeout(ours.get("timeout", "10")),
            way.host,
            way.doubt or doubt,
            ours.get("owner"),
        )

    def __repr__(self) -> str:
        """Name the place; the password is nobody's business."""
        return f"<address {self.url}>"

    @property
    def quoted_schema(self) -> str:
        """The schema's name as SQL takes it."""
        return f'"{self.schema}"'

    @property
    def url(self) -> str:
        """The URL without its password."""
        known = self.parameters
        host = quote(self.host, safe="")
        user = f"{quote(str(known['user']), safe='')}@" if known.get("user") else ""
        port = f":{known['port']}" if known.get("port") else ""
        name = quote(str(known.get("dbname") or ""), safe="")
        schema = "" if self.schema == "fairlead" else f"?{urlencode({'schema': self.schema})}"
        return f"postgresql://{user}{host}{port}/{name}{schema}"


def _given(url: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what the URL tells libpq."""
    known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()}
    for name in options:
        if name not in known:
            raise _unknown(name, options, {*known, *_OURS})
    if parts_of(url).netloc.count("@") > 1:
        raise _unreadable("there are two @ in it")  # libpq takes the second for a part of the host.
    # Not put together by urllib, which leaves out the slashes where no host is named.
    bare = f"{url.partition('?')[0]}?{urlencode(options, quote_via=quote)}"
    try:
        given = conninfo_to_dict(bare)
    except psycopg.ProgrammingError as problem:
        # libpq's words may quote the URL, and with it the password.
        raise _unreadable(str(problem).split(":")[0].strip().split('"')[0].strip()) from None
    if parts_of(url).fragment:
        raise _unreadable("what follows # would be lost")
    if not all(_is_port(each) for each in str(given.get("port", "")).split(",")):
        raise _unreadable("the port is not a number up to 65535")
    return given


def _unknown(name: str, options: Mapping[str, str], known: Collection[str]) -> ConfigError:
    if any("password" in each for each in options):
        # An & in that password would have made an option of its second half.
        return _unreadable("it has an option that nobody knows; an & in a password is written %26")
    return ConfigError(f"postgresql:// knows no option {brief(name)}{did_you_mean(name, known)}")


def _unreadable(why: str) -> ConfigError:
    return ConfigError(
        f"the store's URL cannot be read ({why}); write it as "
        "postgresql://user:password@host:5432/database, and special characters in its parts "
        "with a percent sign, as in %40 for @ and %23 for #"
    )


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and 0 < int(text) < 65536)


class _Way(NamedTuple):
    """Where libpq will connect to, what it must be told so that this is safe, and what is not."""

    host: str
    proof: dict[str, str] = {}  # noqa: RUF012 (never changed)
    doubt: str | None = None


def _way(given: Mapping[str, Any]) -> _Way:
    """Ask a server elsewhere to prove who it is, unless somebody says otherwise."""
    known = _resolved(given)
    host = known.get("host") or "localhost"
    if all(map(_is_loopback, _hosts(known))):
        return _Way(host)
    mode = known.get("sslmode", _UNSET)
    if mode == _UNSET and "sslmode" not in given and "PGSSLMODE" not in os.environ:
        return _Way(host, {"sslmode": "verify-full"} | _authority(known))
    return _Way(host, doubt=f"sslmode={mode}: {_DOUBTS[mode]}" if mode in _DOUBTS else None)


def _resolved(given: Mapping[str, Any]) -> dict[str, str]:
    """Return what libpq makes of it, with service files and the environment.

    It reads them when it begins to connect. A value that cannot be stops it there, before it
    asks anybody.
    """
    asked = pq.PGconn.connect_start(make_conninfo(**{**given, "channel_binding": "?"}).encode())
    try:
        found = {each.keyword.decode(): each.val.decode() for each in asked.info if each.val}
    finally:
        asked.finish()
    return {name: str(value) for name, value in given.items()} | found


def _authority(known: Mapping[str, str]) -> dict[str, str]:
    """Trust the authorities that the system trusts, if nobody names another."""
    own = Path("~/.postgresql/root.crt").expanduser()
    if "sslrootcert" in known or own.exists() or pq.version() < 160000:
        return {}
    return {"sslrootcert": "system"}


def _hosts(known: Mapping[str, str]) -> Iterator[str]:
    """Yield every name and number of a server."""
    for name in ("host", "hostaddr"):
        yield from (each for each in known.get(name, "").split(",") if each)


def _is_loopback(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _schema(name: str) -> str:
    if not _NAME.fullmatch(name) or name.lower().startswith("pg_"):
        raise ConfigError(
            f"schema={brief(name)} cannot be the name of our schema; take up to 48 ASCII letters, "
            "digits and underscores, not beginning with a digit or pg_"
        )
    return name


def _listener(
    text: str, parameters: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return how to reach the server that tells news, and what nobody protects on the way."""
    if text == "on":
        return parameters, None
    if text == "off":
        return None, None
    if not text.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "listen= takes on, off, or the URL of the server behind the pooler, percent-encoded: "
            "listen=postgresql%3A%2F%2Fhost%2Fdatabase"
        )
    address = Address.of(text)
    return address.parameters, address.doubt


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise ConfigError(f"timeout={cut(text, 20)} is not a number of seconds; write timeout=10")
    return seconds


_WHERE = re.compile(
    r"^(connection failed: |connection is bad: )?"
    r'(connection to server at "[^"]*", port \d+ failed: )?'
)


def told(problem: Exception) -> str:
    """Return what a driver says in one line, without the place, which the store's URL tells."""
    text = str(problem).strip() or type(problem).__name__
    return _WHERE.sub("", text.splitlines()[0]).removeprefix("FATAL:").strip()
