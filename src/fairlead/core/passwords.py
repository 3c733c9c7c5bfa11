"""Passwords in texts that are about to be shown: nobody is to see a part of one (T9)."""

import re

SERVERS = r"(?:postgres(?:ql)?|rediss?(?:\+cluster)?|unix)"
"""The schemes of URLs that may hold a password."""

_USER = re.compile(rf"{SERVERS}://[^\s/?#@:]*:", re.IGNORECASE)
_OPTION = re.compile(r"((?:ssl)?password=)[^\s&'\"]+", re.IGNORECASE)
_WORD = re.compile(r"\S+")


def without_passwords(text: str) -> str:
    """Return a text with stars for the passwords in URLs of stores."""
    if "://" not in text:
        return text
    hidden = _WORD.sub(_without_login, text)
    return _OPTION.sub(r"\1***", hidden)


def _without_login(word: re.Match[str]) -> str:
    """Hide what lies between a user name and the last @; some passwords are kilobytes long.

    Not by one pattern: it would look for that @ again from every place that begins like a URL.
    """
    text = word.group()
    before, at, place = text.rpartition("@")
    user = _USER.search(before) if at else None
    return text if user is None else f"{before[: user.end()]}***@{place}"


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, which ends where a password may begin.

    Where that ends cannot be told any more: its @ may be in what is left out.
    """
    some = text[:most]
    user = _USER.search(some)
    return without_passwords(some if user is None else some[: user.end()])
