"""One bad job harms only itself (I22, F75), seen from outside: the processes stay, the rest runs."""

from typing import Any

from fairlead import FairleadError, State
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, Reason
from tests.fuzz.victim import DEEP
from tests.system.tree import Shop, on_every_store, until


def put_raw(shop: Shop, **job: Any) -> JobId | None:
    """Put what no producer of ours would; None if the store itself refuses it."""
    new = NewJob(**{"task": "shop.wait", "queue": "loop", "payload": '{"seconds":0.1}'} | job)
    try:
        shop.app.store.put_blocking([new])
    except FairleadError:
        return None
    shop.accepted.append(new.id)
    return new.id


@on_every_store
def test_jobs_that_cannot_be_read_end_no_process(shop: Shop) -> None:
    ids = [
        put_raw(shop, id=f"00000000-0000-7000-8000-00000000{n:04}", **job)
        for n, job in enumerate(
            [
                {"options": DEEP},
                {"options": f'{{"later":{DEEP}}}'},
                {"options": '{"backoff":["no","curve"]}'},
                {"payload": DEEP},
                {"payload": f'{{"seconds":{DEEP}}}'},
                {"payload": '{"seconds":' + "9" * 5_000 + "}"},
            ]
        )
    ]
    bad = [job_id for job_id in ids if job_id is not None]
    healthy = shop.put_many("wait", 10, 0.1)
    tree = shop.start("--lease", "5")
    (pid,) = until(lambda: tree.workers)
    shop.until_final(*healthy, *bad)
    for job_id in bad:
        record = shop.record(job_id)
        assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)
    assert {shop.record(job_id).attempt for job_id in healthy} == {1}
    assert tree.workers == [pid]


@on_every_store
def test_a_job_with_a_short_id_is_renewed_from_outside(shop: Shop) -> None:
    """Its id is shorter than its place on the board; the supervisor must not stumble over that."""
    short = put_raw(shop, id="short", payload='{"seconds":4.0}')
    assert short is not None
    tree = shop.start("--lease", "2")
    (pid,) = until(lambda: tree.workers)
    shop.until_final(short)
    record = shop.record(short)
    assert (record.state, record.attempt) == (State.DONE, 1)
    assert tree.workers == [pid]
