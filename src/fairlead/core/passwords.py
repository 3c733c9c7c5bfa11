"""Passwords in texts that are about to be shown: nobody is to see a part of one (T9).

Every pattern here reads on from where the last one ended, so that hostile texts of megabytes
take no longer than others of their length.
"""

import re

SERVERS = r"(?:postgres(?:ql)?|rediss?(?:\+cluster)?|unix)"
"""The schemes of URLs that may hold a password."""

# Of any scheme, and with any of its marks written with a percent sign, as in a URL within another.
_USER = re.compile(
    r"(?::|(?P<quoted>%3A))(?:/|%2F){2}(?!\[[\da-f:.%]*\])[^\s/?#@:]*?(?::|%3A)", re.IGNORECASE
)
_PORT = re.compile(r"\d{1,5}(?![^\s/?#,.;:'\"()\[\]{}<>&%|\\])")
_WORD = re.compile(r"\S*")
_PAGE = re.compile(r"https?://", re.IGNORECASE)
_PLACE = re.compile(r"[^\s/?#]*")
_NAME = "".join(f"(?:{char}|%{ord(char):x}|%{ord(char.upper()):x})" for char in "password")
_OPTION = re.compile(rf"({_NAME}\s*(?:=|%3D)\s*)(?:'[^'\n]*'|[^\s&]+)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return a text with stars for the passwords in URLs, and in options as libpq takes them."""
    return _OPTION.sub(r"\1***", "\n".join(map(_without_logins, text.split("\n"))))


def _without_logins(line: str) -> str:
    """Hide what follows the names of users, up to the @ before the name of a server."""
    shown: list[str] = []
    done, last = 0, line.rfind("@")
    while user := _USER.search(line, done):
        end = _end(_WORD, line, user.end())
        text, at_end = _without_login(line[done:end])
        # A URL without the name of its server, or with white space in its password.
        done = line.index("@", end) if at_end and end < last else end
        shown.append(text)
    return "".join([*shown, line[done:]])


def _without_login(text: str) -> tuple[str, bool]:
    """Hide the logins in a word, to the last @; some passwords are kilobytes long.

    Says also whether one was hidden to the end, for want of an @.
    """
    shown: list[str] = []
    done, raw = 0, text.rfind("@")
    quoted = max(raw, text.rfind("%40"))
    while user := _USER.search(text, done):
        start = user.end()
        if _PAGE.search(text, max(done, user.start() - 5), start):
            # Pages have an @ in their paths.
            end = max(start, text.rfind("@", start, _end(_PLACE, text, start)))
        else:
            end = quoted if user["quoted"] else raw
        if end < start:
            end = start if _PORT.match(text, start) else len(text)
        shown += [text[done:start], "***" if end > start else ""]
        done = end
    return "".join([*shown, text[done:]]), "***" in shown and done == len(text)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Say where a run of characters ends, which may be none."""
    run = pattern.match(text, start)
    return run.end() if run else start


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, which ends where a password may begin.

    Where that ends cannot be told any more: its @ may be in what is left out.
    """
    some = text[:most]
    user = _USER.search(some)
    return without_passwords(some if user is None else some[: user.end()])
