"""What a test needs of the machine: elsewhere than in CI it is skipped without, with the reason."""

import os
from typing import NoReturn

import pytest

IN_CI = bool(os.environ.get("CI"))
"""CI has everything, so what is missing there is a mistake."""


def without(reason: str) -> NoReturn:
    """End a test that cannot run here."""
    if IN_CI:
        pytest.fail(f"CI lacks something: {reason}", pytrace=False)
    pytest.skip(reason)
