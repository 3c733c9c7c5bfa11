"""A link that is slow, far and lossy costs time, and no job its lease (F15, F16)."""

from collections.abc import Callable, Iterator

import pytest

from fairlead import State
from tests.servers.proxy import Proxy
from tests.servers.talk import PostgresTalk, RedisTalk
from tests.system.faults import PostgresShop, ServerShop
from tests.system.redis_faults import RedisShop

ON_SERVERS = pytest.mark.parametrize("shop", ["postgres", "redis"], indirect=True)

TROUBLES: dict[str, Callable[[Proxy], None]] = {
    "far": lambda link: link.delay(0.25),
    "narrow": lambda link: link.narrow(32_000),
    "lossy": lambda link: link.narrow(320_000, loss=0.2),
}
"""Half a second there and back; 256 kbit for all; a fifth of the packets lost."""


@pytest.fixture
def link(shop: PostgresShop | RedisShop) -> Iterator[Proxy]:
    """A way to the shop's server, as good as any until a test says otherwise."""
    with Proxy(
        shop.server.port, PostgresTalk if isinstance(shop, PostgresShop) else RedisTalk
    ) as proxy:
        shop.url = shop.url_with(proxy.port, timeout=20)
        yield proxy


def check_done_once(shop: ServerShop) -> None:
    for job in shop.accepted:
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record
        assert len(shop.starts(job)) == 1


@ON_SERVERS
@pytest.mark.parametrize(
    "trouble",
    ["narrow", *(pytest.param(name, marks=pytest.mark.chaos) for name in ("far", "lossy"))],
)
def test_heartbeats_get_through_beside_large_payloads(
    shop: ServerShop, link: Proxy, trouble: str
) -> None:
    """F15, F16: a claim takes long to arrive, and a running job keeps its lease meanwhile."""
    long = shop.put("wait", 10.0)
    tree = shop.start("--lease", "6")
    shop.until_started(long)
    TROUBLES[trouble](link)
    shop.put_many("carry", 16, "x" * 10_000)
    shop.until_final(seconds=45)
    check_done_once(shop)
    assert "lease passed" not in tree.log
    link.delay(0)
    link.narrow(0)
    assert tree.stop() == 0
