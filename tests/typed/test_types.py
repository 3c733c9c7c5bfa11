"""What type checkers must accept and reject of the public API."""

import re
from pathlib import Path

import pytest
from mypy import api

CASES = Path(__file__).parent / "cases.py"
EXPECTED = re.compile(r"# E: (.+)$")


@pytest.mark.timeout(180)
def test_mypy_accepts_right_calls_and_rejects_wrong_ones() -> None:
    """Each line of cases.py marked `# E: text` must be an error that says so, and no other.

    It goes on from the cache of `make types`, which has looked at all of the rest.
    """
    report, problems, _ = api.run(
        ["--strict", "--no-error-summary", "--hide-error-context", str(CASES)]
    )
    assert problems == ""
    found: dict[int, str] = {}
    for line in report.splitlines():
        place, _, message = line.partition(" error: ")
        if message:
            number = int(place.rstrip(":").rsplit(":", 1)[1])
            found[number] = found.get(number, "") + message
    expected = {
        number: match.group(1)
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line))
    }
    assert found.keys() == expected.keys(), report
    for number, text in expected.items():
        assert text in found[number], f"line {number}: {found[number]}"
    assert len(expected) >= 10
