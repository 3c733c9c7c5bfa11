from pathlib import Path

import pytest

from tests.cli.shop import SHOP, Stock, stocked, with_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module of a shop."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def stock(folder: Path) -> Stock:
    """A job in every state, in the shop's store."""
    return with_store(folder, stocked)
