"""The file is removed under a worker: it says so once, and ends (F34)."""

from pathlib import Path

import pytest

from fairlead import Fairlead, StoreGone
from fairlead.core import events
from tests.runtime.heard import Heard
from tests.system.tree import ALL_POOLS, Shop, alive, until

TOLD = "the file was removed or replaced while this program had it open"


@pytest.fixture
def doomed(tmp_path: Path) -> Shop:
    """A shop whose file a test takes away, so nothing can be looked up in it at the end."""
    return Shop(tmp_path)


@pytest.mark.parametrize("fate", ["removed", "replaced"])
def test_a_worker_whose_file_is_gone_says_so_once_and_ends(doomed: Shop, fate: str) -> None:
    """Also while every kind of handler is in the middle of something, and nothing is claimed."""
    try:
        jobs = [
            *doomed.put_many("wait", 2, 60.0),
            *doomed.put_many("nap", 2, 60.0),
            doomed.put("nap", 60.0, queue="process"),
        ]
        tree = doomed.start(*ALL_POOLS, "--processes", "2")
        for job in jobs:
            doomed.until_started(job)
        started = [line.pid for line in doomed.starts()]
        doomed.app.close()
        (doomed.folder / "jobs.db").unlink()
        if fate == "replaced":
            (doomed.folder / "jobs.db").touch()
        assert tree.ended(5) != 0
        lines = [line for line in tree.log.splitlines() if "jobs.db" in line]
        told = [line for line in lines if "store  " not in line]
        assert len(told) == 1, tree.log
        assert TOLD in told[0]
        assert "start this program again" in told[0]
        assert "Traceback" not in tree.log
        until(lambda: not any(map(alive, started)), 5, "the end of what it started")
    finally:
        doomed.close()
        doomed.app.close()


async def test_a_worker_inside_a_program_ends_with_the_error(tmp_path: Path) -> None:
    app = Fairlead(f"sqlite:///{tmp_path}/jobs.db")
    heard = Heard(app)
    with pytest.raises(StoreGone, match=TOLD):
        async with app.worker():
            (tmp_path / "jobs.db").unlink()
            await heard.until(events.Trouble)
    told = [event for event in heard.events if isinstance(event, events.Trouble | events.StoreLost)]
    assert len(told) == 1
    await app.aclose()
