"""Exceptions nobody can print cost their own job only (F42)."""

from fairlead import Retry, State, fixed
from tests.system.tree import ALL_POOLS, Shop, on_every_store, until

TWICE = Retry(attempts=2, backoff=fixed(0.1, jitter=0))
KINDS = {
    "mute": "shop.Mute",
    "long": "ValueError",
    "surrogate": "ValueError",
    "circle": "ValueError",
}


@on_every_store
def test_odd_exceptions_leave_a_small_record(shop: Shop) -> None:
    jobs = {
        shop.put(task, kind, retry=TWICE, queue=queue): (kind, error)
        for kind, error in KINDS.items()
        for task, queue in (("odd", "loop"), ("odd_plain", "process"), ("odd_plain", "thread"))
    }
    healthy = shop.put_many("wait", 3, 1.0)
    tree = shop.start(*ALL_POOLS, "--lease", "5")
    (pid,) = until(lambda: tree.workers)
    shop.until_final()
    for job, (kind, error) in jobs.items():
        record = shop.record(job)
        assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", 2), kind
        assert [past.error for past in record.errors] == [error, error]
        for past in record.errors:
            assert len(past.message or "") <= 4_096
            assert len(past.traceback or "") <= 16_384
    messages = {kind: shop.record(job).errors[0].message or "" for job, (kind, _) in jobs.items()}
    assert "cannot be printed" in messages["mute"]
    assert "characters left out" in messages["long"]
    assert r"\ud800" in messages["surrogate"]
    assert messages["circle"] == "first"
    assert {shop.record(job).attempt for job in healthy} == {1}
    assert tree.workers == [pid]
    assert all(len(line) < 10_000 for line in tree.log.splitlines())
