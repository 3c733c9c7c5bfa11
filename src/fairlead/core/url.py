"""The URL of a store, which may hold a password that nobody is to see (T9)."""

import re
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from fairlead.core.errors import ConfigError
from fairlead.core.passwords import SERVERS

LONGEST_URL = 16_384
"""A URL may hold another, and each of them a token of kilobytes for a password."""

_BLANK = re.compile(r"\s")
_PLACE = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")
_SEVERAL_HOSTS = re.compile(r"([^:/?#]*://[^/?#,]*)(,[^/?#]*)")


def parts_of(url: str) -> SplitResult:
    """Return the parts of a URL, also of one that names several hosts.

    The newest Pythons refuse a host in brackets behind another, so `urlsplit` sees only the first.
    """
    found = _SEVERAL_HOSTS.match(url)
    if found is None:
        return urlsplit(url)
    first = urlsplit(url[: found.end(1)] + url[found.end() :])
    return first._replace(netloc=first.netloc + found[2])


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL.

    The first `/`, `?` or `#` after the scheme ends the place of the server, also where a
    password was meant. The rest of that password would then pass for a path or an option,
    and be shown as one, so an @ in what follows is refused.
    """
    if len(url) > LONGEST_URL:
        raise ConfigError(
            f"the store's URL has {len(url):,} characters, the limit is {LONGEST_URL:,}"
        )
    parts = None
    with suppress(ValueError):  # Its words quote the URL, so our error must not carry it along.
        parts = parts_of(url)
    if parts is None:
        raise unreadable_url("a host or a password has characters that cannot be there")
    if re.fullmatch(SERVERS, parts.scheme):
        _refuse_cut(url, parts)
    return parts


def _refuse_cut(url: str, parts: SplitResult) -> None:
    """Raise if a password cuts the URL apart, or if the host behind it was forgotten."""
    if _BLANK.search(url):
        raise unreadable_url("there is white space in it")
    if any("@" in part for part in parts[2:]):
        raise unreadable_url("there is an @ behind the place of the server")
    if "@" in parts.netloc or ":" not in parts.netloc:
        return
    if not all(_PLACE.fullmatch(place) for place in parts.netloc.split(",")):
        raise unreadable_url("the port is not a number, or there is no @ before the host")
    if parts.query and not all("=" in option for option in parts.query.split("&")):
        raise unreadable_url("an option has no value, or there is no @ before the host")


def unreadable_url(why: str) -> ConfigError:
    """Say that a URL cannot be read, without a word of it."""
    return ConfigError(
        f"the store's URL cannot be read ({why}); in a user name, a password or an option write "
        "/ as %2F, ? as %3F, # as %23, @ as %40, [ as %5B, ] as %5D and a space as %20"
    )
