from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import ConfigError, FairleadWarning, UnknownQueue
from fairlead.core.queue import Pool, Queue, allot, check_name, declare, hard_limit
from fairlead.core.text import brief


def message_of(make: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*args, **kwargs)
    return str(caught.value)


# Names


@pytest.mark.parametrize("name", ["mail", "pdf-batch", "a", "9to5", "eu.west:mail_2", "x" * 128])
def test_a_name_is_made_of_letters_digits_and_four_signs(name: str) -> None:
    assert check_name("queue", name) == name
    assert Queue(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-mail",
        ".mail",
        "_mail",
        "ma il",
        "mail\n",
        "ma/il",
        "grüße",
        "٣",
        "a\0",
        "x" * 129,
        "{a}",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    assert message_of(Queue, name) == (
        f"{brief(name)} cannot name a queue: use 1 to 128 letters, digits and . _ : - "
        "and start with a letter or digit"
    )
    assert "cannot name a pool" in message_of(Pool, name)


@pytest.mark.parametrize("name", [None, 5, b"mail", ["mail"]])
def test_a_name_must_be_text(name: Any) -> None:
    assert "cannot name a queue" in message_of(Queue, name)


@given(st.text(st.characters(exclude_categories=())))
def test_a_name_is_either_taken_as_it_is_or_refused(name: str) -> None:
    try:
        assert check_name("queue", name) == name
    except ConfigError:
        return
    assert name.isascii()
    assert 1 <= len(name) <= 128


@pytest.mark.parametrize(
    "name",
    [
        "high", "low", "HIGH", "medium", "normal", "urgent", "important", "critical", "priority",
        "highest", "lower", "high-priority", "low_prio", "top.priority", "highprio", "very-high",
        "asap", "express",
    ],
)  # fmt: skip
def test_a_queue_named_for_an_importance_warns(name: str) -> None:
    with pytest.warns(FairleadWarning, match=f"queue '{name}' is named for an importance"):
        Queue(name)


@pytest.mark.parametrize(
    "name", ["mail", "default", "urgent-care", "lowland", "high-court-filings", "express-parcels"]
)
def test_a_queue_named_for_its_work_does_not_warn(name: str) -> None:
    """Every warning is an error in this suite."""
    assert Queue(name).name == name


def test_the_warning_points_at_the_line_that_names_the_queue() -> None:
    with pytest.warns(FairleadWarning) as caught:
        Queue("high")

    assert [warning.filename for warning in caught] == [__file__]


def test_the_warning_says_what_to_do() -> None:
    with pytest.warns(FairleadWarning) as caught:
        Queue("urgent")

    assert str(caught[0].message) == (
        "queue 'urgent' is named for an importance: sooner or later everything is important and "
        "the name says nothing; name it for the work in it, and give that work a weight, a head "
        "start or a pool of its own"
    )


# Weights and reserves


@pytest.mark.parametrize("weight", [1, 2, 1_000_000])
def test_a_weight_is_a_whole_number(weight: int) -> None:
    assert Queue("mail", weight=weight).weight == weight


@pytest.mark.parametrize("weight", [0, -1, 1_000_001, 1.0, 2.5, True, "3", None, float("nan")])
def test_other_weights_are_refused(weight: Any) -> None:
    assert message_of(Queue, "mail", weight=weight) == (
        f"the weight of queue 'mail' must be a whole number from 1 to 1,000,000, not {weight!r}"
    )


def test_a_queue_has_weight_one_by_default() -> None:
    assert Queue("mail").weight == 1


# Critical queues


def test_a_critical_queue_owns_one_slot_by_default() -> None:
    assert Queue("alarms", critical=True, tasks=["page"]).reserved == 1
    assert Queue("alarms", critical=True, tasks=["page"], reserve=0).reserved == 0
    assert Queue("alarms", critical=True, tasks=["page"], reserve=7).reserved == 7
    assert Queue("mail").reserved == 0


def test_a_critical_queue_must_list_its_tasks() -> None:
    assert message_of(Queue, "alarms", critical=True) == (
        "the critical queue 'alarms' must list the tasks that may use it, as in "
        "Queue('alarms', critical=True, tasks=[…]); open to all, it soon is no longer critical"
    )


@pytest.mark.parametrize("extra", [{"tasks": ["page"]}, {"reserve": 1}, {"reserve": 0}])
def test_tasks_and_reserve_belong_to_critical_queues(extra: dict[str, Any]) -> None:
    assert message_of(Queue, "mail", **extra) == (
        "`tasks` and `reserve` belong to critical queues; add critical=True to queue 'mail', "
        "or drop them"
    )


@pytest.mark.parametrize("reserve", [-1, 1.5, True, "1"])
def test_a_reserve_is_a_whole_number(reserve: Any) -> None:
    message = message_of(Queue, "alarms", critical=True, tasks=["page"], reserve=reserve)

    assert message.startswith("the reserve of queue 'alarms' must be a whole number from 0 to")


def test_the_tasks_of_a_queue_may_be_any_list_of_names() -> None:
    assert Queue("alarms", critical=True, tasks=["a.b", "c"]).tasks == ("a.b", "c")
    assert Queue("alarms", critical=True, tasks=iter(["a.b"])).tasks == ("a.b",)  # type: ignore[arg-type]


def test_one_name_is_not_a_list_of_names() -> None:
    """Else the queue would be kept for the tasks 'p', 'a', 'g' and 'e'."""
    assert message_of(Queue, "alarms", critical=True, tasks="page") == (
        "'page' is not a list of task names; write ['page']"
    )
    assert message_of(Pool, "web", queues="mail") == (
        "'mail' is not a list of queue names; write ['mail']"
    )


def test_a_task_that_cannot_have_its_name_is_refused() -> None:
    message = message_of(Queue, "alarms", critical=True, tasks=["page me"])

    assert message.startswith("'page me' cannot name a task")


# Pools


def test_a_pool_takes_the_runners_own_slots_by_default() -> None:
    pool = Pool("web")

    assert (pool.queues, pool.slots, pool.runner) == ((), None, None)


@pytest.mark.parametrize("runner", ["async", "thread", "process"])
def test_a_pool_knows_three_runners(runner: str) -> None:
    assert Pool("web", runner=runner).runner == runner


def test_other_runners_are_refused() -> None:
    assert message_of(Pool, "web", runner="gevent") == (
        "pool 'web': runner must be one of async, thread, process, not 'gevent'"
    )


@pytest.mark.parametrize("slots", [0, -1, 1.0, True])
def test_slots_are_a_whole_number(slots: Any) -> None:
    assert message_of(Pool, "web", slots=slots) == (
        f"the slots of pool 'web' must be a whole number from 1 to 1,000,000, not {slots!r}"
    )


# Declaring


def test_declared_queues_are_found_by_name() -> None:
    mail, reports = Queue("mail"), Queue("reports")

    declared = declare([mail, reports])

    assert declared["mail"] is mail
    assert declared["reports"] is reports


def test_the_default_queue_always_exists() -> None:
    assert list(declare([])) == ["default"]
    assert list(declare([Queue("mail")])) == ["mail", "default"]


def test_the_default_queue_may_be_declared() -> None:
    assert declare([Queue("default", weight=3)])["default"].weight == 3


def test_a_queue_cannot_be_declared_twice() -> None:
    assert message_of(declare, [Queue("mail"), Queue("mail", weight=2)]) == (
        "queue 'mail' is declared twice; keep one of them"
    )


# Allotting


def queues_of(*pools: Pool, queues: list[str]) -> dict[str, tuple[str, ...]]:
    return {pool.name: tuple(pool.queues) for pool in allot(pools, queues)}


def test_without_pools_one_serves_everything() -> None:
    assert queues_of(queues=["mail", "default"]) == {"default": ("mail", "default")}


def test_a_pool_without_queues_takes_the_rest() -> None:
    assert queues_of(
        Pool("pdf", queues=["pdf"]), Pool("rest"), queues=["mail", "pdf", "default"]
    ) == {"pdf": ("pdf",), "rest": ("mail", "default")}


def test_the_default_queue_goes_to_the_first_pool_if_nobody_takes_it() -> None:
    assert queues_of(
        Pool("a", queues=["mail"]), Pool("b", queues=["pdf"]), queues=["mail", "pdf", "default"]
    ) == {"a": ("mail", "default"), "b": ("pdf",)}


def test_a_pool_keeps_its_slots_and_runner() -> None:
    [pool] = allot([Pool("web", slots=3, runner="thread")], ["default"])

    assert pool == Pool("web", queues=["default"], slots=3, runner="thread")


def test_a_queue_no_pool_serves_is_refused() -> None:
    assert message_of(allot, [Pool("a", queues=["mail"])], ["default", "mail", "pdf"]) == (
        "no pool serves queue 'pdf'; name it in a pool, or add a pool without queues for the rest, "
        'as in pools=[Pool("rest"), Pool("a", …)]'
    )


def test_what_is_advised_for_a_hard_limit_can_be_declared() -> None:
    advised: dict[str, list[Pool]] = eval(f"dict({hard_limit('pdf')})", {"Pool": Pool})
    rest, hard = allot(advised["pools"], ["default", "mail", "pdf"])
    assert (hard.runner, hard.queues) == ("process", ("pdf",))
    assert (rest.runner, rest.queues) == (None, ("default", "mail"))


def test_a_pool_cannot_serve_a_queue_nobody_declared() -> None:
    with pytest.raises(UnknownQueue, match="did you mean 'mail'"):
        allot([Pool("a", queues=["mial"])], ["mail", "default"])


def test_a_queue_belongs_to_one_pool() -> None:
    pools = [Pool("a", queues=["mail"]), Pool("b", queues=["mail"])]

    assert message_of(allot, pools, ["mail", "default"]) == (
        "queue 'mail' is in two pools, 'a' and 'b'; a queue belongs to one"
    )


def test_a_queue_named_twice_by_one_pool_is_not_said_to_be_in_two() -> None:
    message = message_of(allot, [Pool("a", queues=["mail", "mail"])], ["mail", "default"])

    assert message == "pool 'a' names queue 'mail' twice; once is enough"


def test_only_one_pool_may_take_the_rest() -> None:
    assert message_of(allot, [Pool("a"), Pool("b")], ["mail", "default"]) == (
        "pools 'a' and 'b' name no queues; only one pool may take the rest"
    )


def test_pools_have_names_of_their_own() -> None:
    pools = [Pool("a", queues=["mail"]), Pool("a", queues=["default"])]

    assert message_of(allot, pools, ["mail", "default"]) == (
        "two pools have the same name; give each its own"
    )


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6))
def test_every_queue_is_served_by_exactly_one_pool(owners: list[str | None]) -> None:
    """Queue n is named by the pool owners[n], or by none."""
    queues = ["default", *(f"q{n}" for n in range(len(owners)))]
    named = {
        name: [f"q{n}" for n, owner in enumerate(owners) if owner == name]
        for name in ("a", "b", "c")
    }
    pools = [Pool(name, queues=mine) for name, mine in named.items() if mine]

    allotted = allot([*pools, Pool("rest")], queues)

    assert sorted(queue for pool in allotted for queue in pool.queues) == sorted(queues)
    assert [pool.name for pool in allotted] == [pool.name for pool in [*pools, Pool("rest")]]
