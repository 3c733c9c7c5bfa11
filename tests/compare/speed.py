"""Rates of two builds, in turns."""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import mean
from typing import NamedTuple

from tests.compare.build import Build, Process, Took, Unable
from tests.compare.places import Places
from tests.compare.rows import Row
from tests.compare.verdict import Pair, enough

SLICES = 8


class Limits(NamedTuple):
    """How many pairs are measured: enough to decide, and not for ever."""

    least: int = 8
    most: int = 30


class Speeds:
    """The pairs of each row of one store, or why there are none."""

    def __init__(self, rows: Sequence[Row], limits: Limits) -> None:
        self.pairs: dict[Row, list[Pair]] = {row: [] for row in rows}
        self.cpu: dict[Row, list[Pair]] = {row: [] for row in rows}
        """Jobs for each second that the process computes: this the machine's load disturbs least."""
        self.problems: dict[Row, Unable] = {}
        self._limits = limits

    def measure(self, base: Build, new: Build, places: Places) -> None:
        """Measure until each row is decided.

        Each round of two pairs has new processes and new places: how memory happens to be laid
        out in a process makes it quicker or slower by per cents, as long as it lives.
        """
        while open_rows := self._open():
            builds = (base, new)
            try:
                with ExitStack() as stack:
                    urls = [places.url() for _ in builds]
                    sides = [
                        stack.enter_context(Process(*each))
                        for each in zip(builds, urls, strict=True)
                    ]
                    for row in open_rows:
                        self._measure(row, *sides)
            except Unable as problem:
                self.problems |= dict.fromkeys(self._open(), problem)

    def _open(self) -> list[Row]:
        return [
            row
            for row, pairs in self.pairs.items()
            if row not in self.problems and not enough(pairs, *self._limits)
        ]

    def _measure(self, row: Row, base: Process, new: Process) -> None:
        try:
            for side in (base, new):  # Connections, caches and prepared statements.
                side.took(row.what, row.jobs)
            for order in ((base, new), (new, base)):
                took = _in_turns(row, *order)
                pair, cpu = (
                    Pair(*(row.jobs / _quickest(took[side], at) for side in (base, new)))
                    for at in (0, 1)
                )
                self.pairs[row].append(pair)
                self.cpu[row].append(cpu)
        except Unable as problem:
            self.problems[row] = problem


def _in_turns(row: Row, first: Process, second: Process) -> dict[Process, list[Took]]:
    """Measure slices of both in turns: first, second, second, first, and so on."""
    took: dict[Process, list[Took]] = {first: [], second: []}
    for number in range(SLICES):
        for side in (first, second) if number % 2 == 0 else (second, first):
            took[side].append(side.took(row.what, row.jobs))
    return took


def _quickest(slices: list[Took], at: int) -> float:
    """Return what a slice took, by the quickest quarter.

    Others on the machine can only make a slice slower, so these tell most of the build and
    least of the others.
    """
    return mean(sorted(took[at] for took in slices)[: SLICES // 4])
