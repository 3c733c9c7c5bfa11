"""One line of a benchmark, and the table of them."""

from collections.abc import Iterable, Iterator
from statistics import median

import msgspec


class Row(msgspec.Struct, frozen=True):
    """What was measured, the raw engine's figure and ours, and what we want.

    `best` says what is good: a high ratio to the floor (or a high figure where
    there is none), a high figure of our own ("most"), or a low one.
    """

    what: str
    unit: str
    ours: float
    floor: float | None = None
    target: float | None = None
    best: str = "high"

    @property
    def ratio(self) -> float | None:
        """Ours to the floor's."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the target was reached, if there is one."""
        if self.target is None:
            return None
        if self.best == "low":
            return self.ours <= self.target
        if self.ratio is None or self.best == "most":
            return self.ours >= self.target
        return self.ratio >= self.target


def paired(what: str, floor: list[float], ours: list[float], target: float | None = None) -> Row:
    """Compare two lists of rates, taken in turns."""
    return Row(what, "jobs/s", median(ours), median(floor), target)


def table(rows: Iterable[Row], floor: str = "raw", ours: str = "Fairlead") -> Iterator[str]:
    """Yield the lines of a table for people, 80 columns wide, with names for the two figures."""
    yield f"{'':40} {floor:>9} {ours:>9} {'ratio':>6}  target"
    for row in rows:
        beside = _figure(row.floor) if row.floor is not None else ""
        ratio = f"{row.ratio:.2f}" if row.ratio is not None and row.best != "low" else ""
        what = f"{row.what}, {row.unit}"
        yield f"{what:40} {beside:>9} {_figure(row.ours):>9} {ratio:>6}  {_verdict(row)}".rstrip()


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "≤" if row.best == "low" else "≥"
    return f"{sign} {row.target:,g} {'met' if row.met else 'MISSED'}"
