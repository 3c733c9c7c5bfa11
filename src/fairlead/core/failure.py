"""What is written down about an exception.

Task code may raise anything: exceptions that cannot be printed, messages of
100 MB, texts no database takes, causes that run in a circle. Whatever comes, a
`Failure` is a small, storable record, and making one never raises.
"""

import hashlib
import re
import sysconfig
import traceback
from types import TracebackType

import msgspec

from fairlead.core.passwords import without_passwords
from fairlead.core.text import cut

NAME_LIMIT = 512
MESSAGE_LIMIT = 4_096
TRACEBACK_LIMIT = 16_384
_ROUGHLY = 32
_TOLD = 300
"""How much of a message a line of the log has; the rest stays with the job."""
_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OUR_WORDS = ("Crashed", "LeaseLost", "TimedOut")
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_VARYING = re.compile(
    r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\b[0-9a-fA-F]{32}\b|\d+"
)


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An exception as kept with the job: its class, message, traceback and fingerprint.

    Failures with the same fingerprint have the same class, the same message but
    for numbers, ids and quoted values, and come from the same function of the
    application.
    """

    error: str
    message: str
    traceback: str | None
    fingerprint: str

    @property
    def in_brief(self) -> str:
        """What a log may tell of it: its class, and `detail`."""
        return in_brief(self.error, self.detail)

    @property
    def detail(self) -> str | None:
        """What a log may tell of it: our own words, or of an exception only where it was raised.

        What task code says may hold secrets; it stays with the job.
        """
        if self.traceback is None:
            return self.message if self.error in _OUR_WORDS else None
        places = [
            f"{file}:{line} in {name}"
            for file, line, name in _FRAME.findall(self.traceback)
            if not file.startswith((*_LIBRARY, "<"))
        ]
        return places[-1] if places else None


def short_name(error: str | None) -> str:
    """Return an exception's name without our own module before it."""
    return (error or "").removeprefix("fairlead.core.errors.")


def in_brief(error: str | None, detail: str | None, message: str | None = None) -> str:
    """Return an exception's name, and what else a log may tell of it; in one line."""
    name = short_name(error)
    if message and message != detail:
        name = f"{name}: {cut(' '.join(message.split()), _TOLD)}"
    return f"{name} ({detail})" if detail else name


def describe(error: BaseException) -> Failure:
    """Write down an exception; never raises."""
    name = clean(
        f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."), NAME_LIMIT
    )
    message = clean(_text_of(error), MESSAGE_LIMIT)
    return Failure(name, message, _trace(error), fingerprint(name, message, error.__traceback__))


def described(error: str, message: str) -> Failure:
    """Write down a failure that was no exception, such as a process that died."""
    message = clean(message, MESSAGE_LIMIT)
    return Failure(error, message, None, fingerprint(error, message, None))


def fingerprint(name: str, message: str, trace: TracebackType | None) -> str:
    """Return 16 hex digits shared by failures that are the same problem."""
    shape = _VARYING.sub("#", message)
    text = f"{name}\0{shape}\0{_place(trace)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _place(trace: TracebackType | None) -> str:
    """Name the innermost function that is not a library's; line numbers move, names stay."""
    own = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        last = f"{trace.tb_frame.f_globals.get('__name__')}:{code.co_qualname}"
        if not code.co_filename.startswith((*_LIBRARY, "<")):
            own = last
        trace = trace.tb_next
    return own or last


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as inner:  # noqa: BLE001 (user code: a __str__ may raise anything)
        return f"<its text cannot be printed: {type(inner).__name__}>"


def _trace(error: BaseException) -> str | None:
    try:
        lines = traceback.format_exception(error, limit=-30)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (user code: __repr__, __notes__, ExceptionGroup tricks)
        lines = traceback.format_tb(error.__traceback__, limit=-30)
    return clean("".join(lines), TRACEBACK_LIMIT) or None


def clean(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Make text storable anywhere: valid UTF-8, no NUL, no password, not longer than the limit."""
    if len(text) > _ROUGHLY * limit:  # 100 MB take long; a URL that this cuts apart goes below
        text = _cut(text, _ROUGHLY * limit)
    text = without_passwords(text)
    if len(text) > limit:  # again roughly: replacing lengthens
        text = _cut(text, limit)
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    return _cut(text, limit) if len(text) > limit else text


def _cut(text: str, limit: int) -> str:
    gap = f"\n… {len(text) - limit:,} characters left out …\n"
    half = (limit - len(gap)) // 2
    return f"{text[:half]}{gap}{text[-half:]}"
