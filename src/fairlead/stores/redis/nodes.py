"""Which node is asked what. A single server is a cluster of one.

Knows no connection either: `answered` yields what to ask of which node, and is sent the
answers, or the errors in their place. It follows jobs whose slot has moved, waits for those
whose slot is moving, and gives our functions to nodes that do not have them, if it may.
"""

from collections.abc import Generator, Sequence
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.functions import LIBRARY
from fairlead.stores.redis.talk import Command

Batches = dict[Node, list[Command]]
Replies = dict[Node, list[Any]]
Asking = Generator[Batches | float, Replies, list[Any]]
"""Yields commands by node, or a number of seconds to wait."""

_KEYLESS = frozenset({"TIME", "INFO", "CONFIG", "PING", "CLUSTER", "MULTI", "EXEC"})
_CALLS = frozenset({"FCALL", "FCALL_RO"})
_LOAD = ("FUNCTION", "LOAD", "REPLACE", LIBRARY.code)
_MOST_ROUNDS = 60
_PAUSE = 0.05
_MOVING = (exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.BusyLoadingError)
_SEEDS_ASKED = 5


class Nodes:
    """Who keeps which slot, as far as we know."""

    def __init__(self, address: Address) -> None:
        self._named = self._seeds = address.nodes
        self._is_cluster = address.is_cluster
        self._owners: dict[int, Node] = {}

    @property
    def all(self) -> list[Node]:
        """Every node that is known to keep something."""
        return list(dict.fromkeys(self._owners.values())) or list(self._seeds)

    def answered(self, commands: Sequence[Command]) -> Asking:
        """Return the answers to commands, each from the node that keeps its key."""
        if self._is_cluster and not self._owners:
            yield from self._learn()
        answers: list[Any] = [None] * len(commands)
        left = {at: self._node_of(command) for at, command in enumerate(commands)}
        asking: set[int] = set()
        bare: set[Node] = set()
        if not self._is_cluster:
            # There is nothing to follow, and hardly ever anything to load: be quick about it.
            replies = yield {self.all[0]: [_bare(command) for command in commands]}
            [only] = replies.values()
            if not any(_is_missing(each) or _did_nothing(each) for each in only):
                return only
            left, asking, bare, _ = self._sort(left, dict(enumerate(only)), answers)
        for _ in range(_MOST_ROUNDS):
            said = yield from self._ask(commands, left, asking, bare)
            left, asking, bare, moving = self._sort(left, said, answers)
            if not left:
                return answers
            if moving:
                yield _PAUSE
        for at in left:
            answers[at] = exceptions.ClusterDownError("its slot is moving, and does not arrive")
        return answers

    def doubt(self) -> None:
        """Ask anew who keeps what, when the next call is made."""
        self._owners.clear()

    def _node_of(self, command: Command) -> Node:
        if isinstance(command[0], Node):
            return command[0]
        if not self._is_cluster or command[0] in _KEYLESS:
            return self.all[0]
        key = str(command[3] if command[0] in _CALLS else command[1])
        return self._owners.get(key_slot(key.encode())) or self.all[0]

    def _ask(
        self, commands: Sequence[Command], left: dict[int, Node], asking: set[int], bare: set[Node]
    ) -> Generator[Batches | float, Replies, dict[int, Any]]:
        """Ask what is left, once; the answers by the command's place.

        A node that does not take our functions has only that to say.
        """
        batches: Batches = {node: [_LOAD] for node in bare}
        places: dict[int, tuple[Node, int]] = {}
        for at, node in left.items():
            batch = batches.setdefault(node, [])
            if at in asking:
                batch.append(("ASKING",))
            places[at] = node, len(batch)
            batch.append(_bare(commands[at]))
        replies = yield batches
        refusals = {node: replies[node][0] for node in bare}
        return {
            at: refusals[node]
            if isinstance(refusals.get(node), Exception)
            else replies[node][place]
            for at, (node, place) in places.items()
        }

    def _sort(
        self, left: dict[int, Node], replies: dict[int, Any], answers: list[Any]
    ) -> tuple[dict[int, Node], set[int], set[Node], bool]:
        """Keep the answers, and say what is to be asked again and where."""
        if any(map(_did_nothing, replies.values())):
            return left, set(), set(left.values()), False
        again: dict[int, Node] = {}
        asking: set[int] = set()
        bare: set[Node] = set()
        moving = False
        for at, reply in replies.items():
            match reply:
                case exceptions.MovedError():
                    again[at] = self._owners[reply.slot_id] = _named(reply, left[at])
                case exceptions.AskError():
                    again[at] = _named(reply, left[at])
                    asking.add(at)
                case _ if _is_missing(reply):
                    again[at] = left[at]
                    bare.add(left[at])
                case _ if isinstance(reply, _MOVING) and self._is_cluster:
                    again[at] = left[at]
                    moving = True
                case exceptions.ConnectionError() | exceptions.TimeoutError() if self._is_cluster:
                    self.doubt()
                    answers[at] = reply
                case _:
                    answers[at] = reply
        return again, asking, bare, moving

    def _learn(self) -> Generator[Batches | float, Replies, None]:
        """Ask one node after the other who keeps what."""
        problem: Any = None
        for seed in self._seeds[:_SEEDS_ASKED]:
            # Whoever does not answer is asked last the next time.
            self._seeds = (*(each for each in self._seeds if each != seed), seed)
            replies = yield {seed: [("CLUSTER", "SLOTS")]}
            [slots] = replies[seed]
            if isinstance(slots, Exception):
                problem = slots
                continue
            for first, last, owner, *_ in slots:
                host = owner[0].decode() if owner[0] else seed.host
                node = Node(host, int(owner[1]))
                self._owners.update(dict.fromkeys(range(first, last + 1), node))
            if self._owners:
                self._seeds = tuple(dict.fromkeys((*self.all, *self._named)))
                return
        raise problem or exceptions.ClusterDownError("no node keeps any slot")


def _bare(command: Command) -> Command:
    """Return the words of a command, without who is asked."""
    return command[1:] if isinstance(command[0], Node) else command


def _is_missing(reply: Any) -> bool:  # noqa: ANN401 (any answer)
    """Say whether a node does not have the function that was called."""
    return isinstance(reply, exceptions.ResponseError) and "Function not found" in str(reply)


def _did_nothing(reply: Any) -> bool:  # noqa: ANN401 (any answer)
    """Say whether a transaction did nothing, because the node does not have our functions."""
    return isinstance(reply, list) and bool(reply) and _is_missing(reply[0])


def _named(reply: exceptions.AskError, asked: Node) -> Node:
    """Return the node an answer points to; without a host it means the one that said it."""
    return Node(reply.host or asked.host, int(reply.port))
