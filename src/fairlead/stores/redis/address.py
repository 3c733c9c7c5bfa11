"""Where the server is, and how to reach it: the parts of a Redis URL."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode

import msgspec

from fairlead.core.errors import ConfigError, did_you_mean
from fairlead.core.url import parts_of

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_OURS = ("prefix", "durability", "timeout", "db")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_PORT = 6379


class Node(msgspec.Struct, frozen=True):
    """One server: a host and a port, or a socket's path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """Tell where it is."""
        return self.path or f"{self.host}:{self.port}"


class Address(msgspec.Struct, frozen=True):
    """A server, or some of a cluster, and the prefix of our keys there.

    `durability` is what the URL says of the server: `fast`, if jobs may be lost with it, or
    `durable`, if a power cut must not cost any. `timeout` is how many seconds an answer may take.
    """

    nodes: tuple[Node, ...]
    options: Mapping[str, Any] = {}
    is_cluster: bool = False
    tls: bool = False
    database: int = 0
    prefix: str = "fairlead"
    durability: str | None = None
    timeout: float = 5.0

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL."""
        parts = parts_of(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        tls = parts.scheme.startswith("rediss")
        known = {*_OURS, *(_TLS if tls else ())}
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"{parts.scheme}:// knows no option {name!r}{did_you_mean(name, known)}; "
                    f"it takes {', '.join(sorted(known))}"
                )
        if parts.fragment:
            raise _unreadable("what follows # would be lost")
        is_cluster = parts.scheme.endswith("+cluster")
        return cls(
            _nodes(parts),
            _login(parts) | {name: options[name] for name in _TLS if name in options},
            is_cluster,
            tls,
            _database(parts, options, is_cluster=is_cluster),
            _prefix(options.get("prefix", "fairlead")),
            _durability(options.get("durability")),
            _timeout(options.get("timeout", "5")),
        )

    def __repr__(self) -> str:
        """Name the place; the password is nobody's business."""
        return f"<address {self.url}>"

    @property
    def is_open(self) -> bool:
        """Whether what goes to a server that the URL names can be read on the way."""
        return any(self.is_open_to(node) for node in self.nodes)

    def is_open_to(self, node: Node) -> bool:
        """Say whether what goes to a server can be read on the way: over a network, without TLS."""
        return not (self.tls or node.path or _is_loopback(node.host))

    @property
    def url(self) -> str:
        """The URL without its password."""
        user = f"{quote(self.options['username'], safe='')}@" if "username" in self.options else ""
        ours: dict[str, str] = {}
        if self.prefix != "fairlead":
            ours["prefix"] = self.prefix
        if self.nodes[0].path:
            ours = {"db": str(self.database)} | ours if self.database else ours
            return f"unix://{user}{quote(self.nodes[0].path)}{_query(ours)}"
        scheme = f"redis{'s' if self.tls else ''}{'+cluster' if self.is_cluster else ''}"
        place = ",".join(map(str, self.nodes))
        database = "" if self.is_cluster else f"/{self.database}"
        return f"{scheme}://{user}{place}{database}{_query(ours)}"


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _unreadable(why: str) -> ConfigError:
    return ConfigError(
        f"the store's URL cannot be read ({why}); write it as redis://user:password@host:6379/0, "
        "redis+cluster://host:6379,host:6380 or unix:///path/to/socket, and special characters "
        "in its parts with a percent sign, as in %40 for @ and %23 for #"
    )


def _nodes(parts: SplitResult) -> tuple[Node, ...]:
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise _unreadable("there is no path to a socket")
        return (Node(path=unquote(parts.path)),)
    places = parts.netloc.rpartition("@")[2].split(",")
    if len(places) > 1 and not parts.scheme.endswith("+cluster"):
        raise _unreadable("one server has one host")
    return tuple(_node(place) for place in places)


def _node(place: str) -> Node:
    host, _, port = place.rpartition(":") if re.search(r":\d*$", place) else (place, "", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise _unreadable("the port is not a number up to 65535")
    if ":" in host and not host.startswith("["):
        raise _unreadable("the port is not a number up to 65535")
    return Node(unquote(host.strip("[]")) or "localhost", int(port or _PORT))


def _login(parts: SplitResult) -> dict[str, str]:
    login = {}
    if parts.username:
        login["username"] = unquote(parts.username)
    if parts.password:
        login["password"] = unquote(parts.password)
    return login


def _database(parts: SplitResult, options: Mapping[str, str], *, is_cluster: bool) -> int:
    named = "" if parts.scheme == "unix" else parts.path.strip("/")
    text = options.get("db", named) or "0"
    if not (text.isascii() and text.isdigit()):
        raise _unreadable(f"the database is a number, not {text!r}")
    if is_cluster and int(text):
        raise _unreadable("a cluster has only database 0")
    return int(text)


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ConfigError(
            f"prefix={text!r} cannot begin our keys; take up to 64 ASCII letters, digits and "
            ". _ : - and begin with a letter or digit"
        )
    return text


def _durability(text: str | None) -> str | None:
    if text not in (None, "fast", "durable"):
        raise ConfigError(
            f"durability={text!r:.40} is nothing that a server can have; write durability=durable "
            "if it keeps jobs through a power cut (appendfsync always), durability=fast if it may "
            "lose some, or leave it out and let Fairlead ask the server"
        )
    return text


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise ConfigError(f"timeout={text} is not a number of seconds; write timeout=5")
    return seconds


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
