"""Where the server is, and how to reach it: the parts of a `postgresql://` URL."""

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from fairlead.core.errors import ConfigError, did_you_mean

_OURS = ("schema", "listen", "timeout")
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


class Address(msgspec.Struct, frozen=True):
    """A server, a database and a schema in it.

    `listen` says where to hear of news: on the same server, at another URL (past a
    pooler, which cannot pass them on), or nowhere (None), which means to poll.
    `timeout` is how many seconds an answer may take.
    """

    parameters: Mapping[str, Any]
    schema: str = "fairlead"
    listen: Mapping[str, Any] | None = None
    timeout: float = 10.0

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: options.pop(name) for name in _OURS if name in options}
        parameters = _parameters(url, options)
        return cls(
            parameters,
            _schema(ours.get("schema", "fairlead")),
            _listener(ours.get("listen", "on"), parameters),
            _timeout(ours.get("timeout", "10")),
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
        host = quote(str(known.get("host") or "localhost"), safe="")
        user = f"{quote(str(known['user']), safe='')}@" if known.get("user") else ""
        port = f":{known['port']}" if known.get("port") else ""
        name = quote(str(known.get("dbname") or ""), safe="")
        schema = "" if self.schema == "fairlead" else f"?{urlencode({'schema': self.schema})}"
        return f"postgresql://{user}{host}{port}/{name}{schema}"


def _parameters(url: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what libpq needs to connect, with our defaults for what the URL leaves open."""
    known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"postgresql:// knows no option {name!r}{did_you_mean(name, {*known, *_OURS})}"
            )
    # Not put together by urllib, which leaves out the slashes where no host is named.
    bare = f"{url.partition('?')[0]}?{urlencode(options, quote_via=quote)}"
    try:
        given = conninfo_to_dict(bare)
    except psycopg.ProgrammingError as problem:
        # libpq's words may quote the URL, and with it the password.
        raise _unreadable(str(problem).split(":")[0].strip().split('"')[0].strip()) from None
    if urlsplit(url).fragment:
        raise _unreadable("what follows # would be lost")
    if not all(_is_port(each) for each in str(given.get("port", "")).split(",")):
        raise _unreadable("the port is not a number up to 65535")
    return _DEFAULTS | _safely(given)


def _unreadable(why: str) -> ConfigError:
    return ConfigError(
        f"the store's URL cannot be read ({why}); write it as "
        "postgresql://user:password@host:5432/database, and special characters in its parts "
        "with a percent sign, as in %40 for @ and %23 for #"
    )


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and 0 < int(text) < 65536)


def _safely(given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a server elsewhere to prove who it is, unless the URL says otherwise."""
    safe = dict(given)
    if "sslmode" in given or "PGSSLMODE" in os.environ or all(map(_is_loopback, _hosts(given))):
        return safe
    safe["sslmode"] = "verify-full"
    own = Path("~/.postgresql/root.crt").expanduser()
    if "sslrootcert" not in given and not own.exists() and pq.version() >= 160000:
        safe["sslrootcert"] = "system"
    return safe


def _hosts(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield every name and number of a server; libpq takes what is not given from outside."""
    for name in ("host", "hostaddr"):
        text = str(given.get(name) or os.environ.get(f"PG{name.upper()}") or "")
        yield from (each for each in text.split(",") if each)


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
            f"schema={name!r} cannot be the name of our schema; take up to 48 ASCII letters, "
            "digits and underscores, not beginning with a digit or pg_"
        )
    return name


def _listener(text: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if text == "on":
        return parameters
    if text == "off":
        return None
    if not text.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "listen= takes on, off, or the URL of the server behind the pooler, percent-encoded: "
            "listen=postgresql%3A%2F%2Fhost%2Fdatabase"
        )
    return Address.of(text).parameters


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise ConfigError(f"timeout={text} is not a number of seconds; write timeout=10")
    return seconds


_WHERE = re.compile(
    r"^(connection failed: |connection is bad: )?"
    r'(connection to server at "[^"]*", port \d+ failed: )?'
)


def told(problem: Exception) -> str:
    """Return what a driver says in one line, without the place, which the store's URL tells."""
    text = str(problem).strip() or type(problem).__name__
    return _WHERE.sub("", text.splitlines()[0]).removeprefix("FATAL:").strip()
