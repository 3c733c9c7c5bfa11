"""The URL of a store, which may hold a password that nobody is to see (T9)."""

import re
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from fairlead.core.errors import ConfigError

_SERVERS = r"(?:postgres(?:ql)?|rediss?(?:\+cluster)?|unix)"
# Lengths are bounded, so that no text takes long.
_LOGIN = re.compile(rf"({_SERVERS}://[^\s/?#@:]{{0,256}}):\S{{0,512}}@", re.IGNORECASE)
_OPTION = re.compile(r"((?:ssl)?password=)[^\s&'\"]{1,512}", re.IGNORECASE)


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL.

    The first `/`, `?` or `#` after the scheme ends the place of the server, also where a
    password was meant. The rest of that password would then pass for a path or an option,
    and be shown as one, so an @ in what follows is refused.
    """
    parts = None
    with suppress(ValueError):  # Its words quote the URL, so our error must not carry it along.
        parts = urlsplit(url)
    if parts is None:
        raise unreadable_url("a host or a password has characters that cannot be there")
    if re.fullmatch(_SERVERS, parts.scheme) and any("@" in part for part in parts[2:]):
        raise unreadable_url("there is an @ behind the place of the server")
    return parts


def unreadable_url(why: str) -> ConfigError:
    """Say that a URL cannot be read, without a word of it."""
    return ConfigError(
        f"the store's URL cannot be read ({why}); in a user name, a password or an option write "
        "/ as %2F, ? as %3F, # as %23, @ as %40, [ as %5B and ] as %5D"
    )


def without_passwords(text: str) -> str:
    """Return a text with stars for the passwords in URLs of stores."""
    if "://" not in text:
        return text
    hidden = _LOGIN.sub(r"\1:***@", text)
    return _OPTION.sub(r"\1***", hidden)
