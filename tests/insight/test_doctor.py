"""What keeps doctor from one part of a store hides nothing that it found in another."""

import pytest

from fairlead import Fairlead
from fairlead.core.admin import Finding
from fairlead.core.errors import StoreUnavailable
from fairlead.insight.doctor import examine

MISSING = Finding("the table attempt is missing", "restore a backup")


async def fails(*_: object) -> None:
    raise StoreUnavailable("store", "relation attempt does not exist")


async def test_what_is_missing_is_told_though_other_parts_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://")

    async def audit() -> list[Finding]:
        return [MISSING]

    monkeypatch.setattr(app.store, "audit", audit)
    monkeypatch.setattr(app.store, "condition", fails)
    found = (await examine(app.store, None)).findings
    assert found[0] == MISSING
    assert "the store's set-up cannot be looked at" in found[1].problem


async def test_an_outage_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fairlead("memory://")
    monkeypatch.setattr(app.store, "audit", fails)
    with pytest.raises(StoreUnavailable):
        await examine(app.store, None)
