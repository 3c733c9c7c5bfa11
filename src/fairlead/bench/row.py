"""One line of a benchmark, and the table of them."""

from collections.abc import Iterable, Iterator
from statistics import median

import msgspec


class Row(msgspec.Struct, frozen=True):
    """What was measured, the floor's and our own figure, and what we want.

    `best` says which direction is good for the figure that has a target: the
    ratio if there is a floor, else our own figure.
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
        figure = self.ratio if self.floor else self.ours
        if self.target is None or figure is None:
            return None
        return figure >= self.target if self.best == "high" else figure <= self.target


def paired(what: str, floor: list[float], ours: list[float], target: float) -> Row:
    """Compare two lists of rates, taken in turns."""
    return Row(what, "jobs/s", median(ours), median(floor), target)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table for people."""
    yield f"{'':44} {'raw engine':>12} {'Fairlead':>12} {'ratio':>7}   target"
    for row in rows:
        floor = f"{row.floor:,.0f}" if row.floor else ""
        ratio = f"{row.ratio:.2f}" if row.ratio else ""
        ours = f"{row.ours:,.0f}" if row.ours >= 100 else f"{row.ours:,.2f}"
        sign = "≥" if row.best == "high" else "≤"
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        target = f"{sign} {row.target:g} {verdict}" if row.target is not None else ""
        yield f"{f'{row.what}, {row.unit}':44} {floor:>12} {ours:>12} {ratio:>7}   {target}"
