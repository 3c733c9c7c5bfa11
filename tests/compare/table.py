"""What was measured, for people."""

from collections.abc import Iterator, Mapping
from statistics import median

from tests.compare.counts import UNITS
from tests.compare.rows import Row
from tests.compare.speed import Speeds
from tests.compare.verdict import BOUND, Change, Pair, Verdict, ratio_of

SPEED_HEAD = (
    f"{'jobs a second':28} {'base':>9} {'new':>9} {'ratio':>6}  {'95 % interval':^14} {'pairs':>5}"
    f" {'by CPU':>7}"
)


def speed_lines(speeds: Speeds) -> Iterator[str]:
    """Yield a line for each row of a store."""
    for row, pairs in speeds.pairs.items():
        if problem := speeds.problems.get(row):
            yield f"{_name(row.store, row.what)} {problem}"
        else:
            yield _speed_line(row, pairs, speeds.cpu[row])


def _speed_line(row: Row, pairs: list[Pair], cpu: list[Pair]) -> str:
    base, new = (median(side) for side in zip(*pairs, strict=True))
    ratio = ratio_of(pairs)
    mark = "" if ratio.verdict is Verdict.FINE else f"  {ratio.verdict}"
    return (
        f"{_name(row.store, row.what)} {base:9,.0f} {new:9,.0f} {ratio.middle:6.2f}  "
        f"{ratio.low:5.2f} to {ratio.high:5.2f} {len(pairs):5} {ratio_of(cpu).middle:7.2f}{mark}"
    )


def count_lines(store: str, counts: Mapping[str, Mapping[str, Change]]) -> Iterator[str]:
    """Yield a line for each row of a store; what changed is shown as base→new."""
    units = [unit for unit in UNITS if any(unit in row for row in counts.values())]
    yield ""
    yield f"{'per job':28}" + "".join(f"{unit:>16}" for unit in units)
    for what, row in counts.items():
        if not row:
            yield f"{_name(store, what)} could not be counted: a build cannot run it"
            continue
        cells = "".join(f"{_change(row.get(unit)):>16}" for unit in units)
        grew = [unit for unit, change in row.items() if change.grew]
        yield (_name(store, what) + cells).rstrip() + (f"  MORE {', '.join(grew)}" if grew else "")


def _change(change: Change | None) -> str:
    if change is None:
        return ""
    base, new = _figure(median(change.base)), _figure(median(change.new))
    return f"{base}→{new}" if change.grew or change.fell else new


def summary(speeds: list[Speeds], changes: list[Change]) -> str:
    """Say it all in a sentence or two."""
    measured = [
        ratio_of(pairs).verdict
        for each in speeds
        for row, pairs in each.pairs.items()
        if row not in each.problems
    ]
    unable = sum(len(each.problems) for each in speeds)
    parts = [f"{measured.count(Verdict.FINE)} of {len(measured) + unable} rows are not slower"]
    parts += _some(measured.count(Verdict.SLOWER), f"below {BOUND} of the base: SLOWER")
    parts += _some(measured.count(Verdict.UNDECIDED), "undecided: the machine was too busy to tell")
    parts += _some(unable, "could not be compared")
    grew = sum(change.grew for change in changes)
    fell = sum(change.fell for change in changes)
    same = len(changes) - grew - fell
    counts = f" Of {len(changes)} counts {grew} grew, {fell} fell, {same} are the same."
    return ", ".join(parts) + "." + (counts if changes else "")


def _some(number: int, what: str) -> list[str]:
    return [f"{number} {what}"] if number else []


def _name(store: str, what: str) -> str:
    return f"{store:9} {what:18}"


def _figure(value: float) -> str:
    """Show enough digits to see one statement more in a thousand jobs."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" if value >= 1 else f"{value:.4f}"
