"""A shop per test; whatever a test did to its workers, the same must hold after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.tree import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    try:
        yield shop
        shop.finish()
    finally:
        shop.close()
        shop.app.close()
