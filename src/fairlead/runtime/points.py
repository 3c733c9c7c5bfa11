"""Crash points: named places where a test may kill, stop or delay this process.

In production nobody listens, and a point costs a comparison. GUARANTEES.md
numbers them: `claim` is p4, `claimed` p5, `held` p6, `starting` p7, `started`
p8, `ended` p10, `settle` p11, `settled` p12.
"""

from collections.abc import Callable

POINTS = ("claim", "claimed", "held", "starting", "started", "ended", "settle", "settled")

_listener: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass a point."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Call this at every point from now on; None ends it."""
    global _listener  # noqa: PLW0603 (one process, one listener)
    _listener = listener
