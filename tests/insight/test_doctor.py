"""What keeps doctor from one part of a store hides nothing that it found in another."""

import pytest

from fairlead import Fairlead
from fairlead.core.admin import Finding
from fairlead.core.errors import StoreUnavailable
from fairlead.core.store import Store
from fairlead.insight.doctor import examine
from tests.words import new_job

MISSING = Finding("the table attempt is missing", "restore a backup")


async def fails(*_: object) -> None:
    raise StoreUnavailable("store", "relation attempt does not exist")


async def test_what_is_missing_is_told_though_other_parts_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://")

    async def audit() -> list[Finding]:
        return [MISSING]

    monkeypatch.setattr(app.store.admin, "audit", audit)
    monkeypatch.setattr(app.store.admin, "condition", fails)
    found = (await examine(app.store, None)).findings
    assert found[0] == MISSING
    assert "the store's set-up cannot be looked at" in found[1].problem


async def test_an_outage_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fairlead("memory://")
    monkeypatch.setattr(app.store.admin, "audit", fails)
    with pytest.raises(StoreUnavailable):
        await examine(app.store, None)


async def test_jobs_that_a_worker_of_the_app_could_not_run_are_told(store: Store) -> None:
    """Only a live worker would have parked them; to start one was all that was advised."""
    app = Fairlead("memory://")
    app.task(name="shop.welcomes")(lambda: None)
    await store.put([new_job(task="shop.welcome"), new_job(task="shop.welcomes")])
    findings = (await examine(store, app)).findings
    [finding] = [each for each in findings if "a worker of this app" in each.problem]
    assert "jobs of task 'shop.welcome' in version 1 wait" in finding.problem
    assert "did you mean 'shop.welcomes'?" in finding.remedy
    assert "@app.task(aliases=['shop.welcome'])" in finding.remedy
    assert not [each for each in (await examine(store, None)).findings if "app" in each.problem]
