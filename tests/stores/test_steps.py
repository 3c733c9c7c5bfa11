"""Which programs a schema still serves: the one decision that every store asks (P14)."""

from importlib.resources import files
from pathlib import Path

import pytest

from fairlead import SchemaOutdated
from fairlead.stores.statements import numbered_steps
from fairlead.stores.steps import check_served


@pytest.mark.parametrize(
    ("applied", "level"),
    [
        ([], 1),
        ([(1, 1), (2, 1)], 1),
        ([(1, 1), (2, 1), (3, 1), (9, 1)], 1),
        ([(1, 1), (2, 1), (3, 2)], 2),
        # What a program has itself, it can use: whatever is said of it.
        ([(1, 5), (2, 5)], 1),
    ],
)
def test_a_program_goes_on_while_every_newer_step_serves_it(
    applied: list[tuple[int, int]], level: int
) -> None:
    check_served(applied, 2, level)


@pytest.mark.parametrize(
    "applied", [[(3, 2)], [(3, 2), (4, 1)], [(4, 1), (3, 3)], [(3, 1), (4, 2)]]
)
def test_one_newer_step_that_does_not_serve_it_is_enough(applied: list[tuple[int, int]]) -> None:
    newest = max(number for number, _ in applied)
    told = f"the store's schema is version {newest}, this program needs 2; upgrade this program"
    with pytest.raises(SchemaOutdated, match=told):
        check_served(applied, 2, 1)


def test_a_step_says_in_its_file_whom_it_serves(tmp_path: Path) -> None:
    (tmp_path / "0001_tables.sql").write_text("CREATE TABLE a (b);\n")
    (tmp_path / "0002_more.sql").write_text("-- serves: 3\nDROP TABLE a;\n")
    assert [(step.number, step.name, step.serves) for step in numbered_steps(tmp_path)] == [
        (1, "tables", 1),
        (2, "more", 3),
    ]
    ours = numbered_steps(files("fairlead.stores.sqlite").joinpath("migrations"))
    assert [step.serves for step in ours] == [1]
