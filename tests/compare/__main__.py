"""Compare a commit with the working tree: `make bench-compare BASE=HEAD~1`."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from tests.compare.build import Build, commit, described, working_tree
from tests.compare.counts import changes
from tests.compare.places import places
from tests.compare.rows import COUNTED_JOBS, STORES, WITH_COUNTS, rows
from tests.compare.speed import Limits, Speeds
from tests.compare.table import SPEED_HEAD, count_lines, speed_lines, summary
from tests.compare.verdict import Change, Verdict, ratio_of


class Comparison:
    """Two builds on some stores."""

    def __init__(self, base: Build, new: Build, folder: Path) -> None:
        self._base = base
        self._new = new
        self._folder = folder
        self._speeds: list[Speeds] = []
        self._changes: list[Change] = []

    def lines(
        self, stores: Sequence[str], named: Sequence[str], limits: Limits, scale: float
    ) -> Iterator[str]:
        """Measure and count; yields line by line what to print."""
        counted = []
        yield SPEED_HEAD
        for store in stores:
            wanted = rows(store, named, scale)
            with places(store, self._folder) as where:
                speeds = Speeds(wanted, limits)
                speeds.measure(self._base, self._new, where)
                self._speeds.append(speeds)
                yield from speed_lines(speeds)
                whats = [row.what for row in wanted if row.what in COUNTED_JOBS]
                if store in WITH_COUNTS and whats:
                    found = changes(self._base, self._new, where, whats)
                    self._changes += chain(*(units.values() for units in found.values()))
                    counted += count_lines(store, found)
        yield from [*counted, ""]
        yield summary(self._speeds, self._changes)

    @property
    def failed(self) -> bool:
        """Whether a row is surely slower, or the new build cannot run one that it should."""
        return any(
            speeds.problems[row].build == self._new
            if row in speeds.problems
            else ratio_of(pairs).verdict is Verdict.SLOWER
            for speeds in self._speeds
            for row, pairs in speeds.pairs.items()
        )


def main() -> int:
    """Compare what the command line names; returns 1 if a row is slower."""
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--stores", default="", help=f"some of {' '.join(STORES)}")
    parser.add_argument("--rows", default="", help="words of rows: 'put worker'")
    parser.add_argument("--pairs", type=int, default=Limits().most, help="at most so many pairs")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times as many jobs")
    asked = parser.parse_args()
    stores = asked.stores.split() or STORES
    if unknown := [store for store in stores if store not in STORES]:
        parser.error(f"no store is named {unknown[0]}; choose from {', '.join(STORES)}")
    named = asked.rows.split()
    if not any(rows(store, named, 1.0) for store in stores):
        parser.error(f"no row has one of these words: {asked.rows}")
    limits = Limits(least=min(Limits().least, asked.pairs), most=asked.pairs)
    with tempfile.TemporaryDirectory(prefix="fairlead-compare-") as name:
        folder = Path(name)
        comparison = Comparison(commit(asked.base, folder), working_tree(folder), folder)
        python = sys.version.split()[0]
        print(f"base: {described(asked.base)}")
        print(f"new:  the working tree; Python {python}, {os.cpu_count()} cores\n")
        for line in comparison.lines(stores, named, limits, asked.scale):
            print(line, flush=True)
    return int(comparison.failed)


if __name__ == "__main__":
    sys.exit(main())
