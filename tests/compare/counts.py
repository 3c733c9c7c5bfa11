"""What each build sends, says and writes per job, which does not depend on the machine."""

from collections.abc import Sequence
from contextlib import suppress

from tests.compare.build import Build, Process, Unable
from tests.compare.places import Places
from tests.compare.rows import COUNTED_JOBS
from tests.compare.verdict import Change

UNITS = (
    "round trips",
    "statements",
    "commands",
    "scripts",
    "commits",
    "bytes sent",
    "bytes received",
    "bytes written",
)
TIMES = 5
"""How often each is counted: the few counts that depend on timing show it by their spread."""

Counts = dict[str, list[float]]
"""By unit: how many per job, each time."""


def changes(
    base: Build, new: Build, places: Places, whats: Sequence[str]
) -> dict[str, dict[str, Change]]:
    """Return by row and unit what both builds need per job; nothing if one of them cannot."""
    of_base, of_new = (_counts(build, places, whats) for build in (base, new))
    return {what: _together(of_base.get(what), of_new.get(what)) for what in whats}


def _together(base: Counts | None, new: Counts | None) -> dict[str, Change]:
    if base is None or new is None:
        return {}
    both = {unit: Change(base.get(unit, [0.0]), new.get(unit, [0.0])) for unit in UNITS}
    return {unit: change for unit, change in both.items() if any((*change.base, *change.new))}


def _counts(build: Build, places: Places, whats: Sequence[str]) -> dict[str, Counts]:
    found = {}
    url = places.url(counted=True)
    options = ("--trace",) if url.startswith("sqlite") else ()
    with suppress(Unable), Process(build, url, *options) as process:
        for what in whats:
            with suppress(Unable):
                found[what] = _count(process, places, what)
    return found


def _count(process: Process, places: Places, what: str) -> Counts:
    jobs = COUNTED_JOBS[what]
    found: Counts = {}
    for _ in range(2):  # Statements are prepared after a few times.
        process.took(what, jobs)
    for _ in range(TIMES):
        process.step(what, jobs, "prepare")
        places.counts.clear()
        counts = process.step(what, jobs, "run")["counts"] or dict(places.counts)
        process.step(what, jobs, "clean")
        for unit, number in counts.items():
            found.setdefault(unit, []).append(number / jobs)
    return found
