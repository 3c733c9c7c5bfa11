import enum
import json
import math
import time as time_module
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.codec import DEPTH_LIMIT, KEY_LIMIT, PAYLOAD_LIMIT, TEXT_LIMIT, Signature
from fairlead.core.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    EnqueueError,
    PayloadTooLarge,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(msgspec.Struct):
    street: str
    number: int = 1


@dataclass
class Line:
    product: uuid.UUID
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    lines: list[Line]
    at: datetime
    note: str | None = None


class User(pydantic.BaseModel):
    id: int
    joined: datetime
    email: str | None = None


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    colour: Colour
    size: int


AT = datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)
ID = uuid.UUID("018f6b1e-9c3d-7abc-9def-0123456789ab")
LINE = Line(ID, Decimal("9.90"), {"new"})
USER = User(id=7, joined=AT, email="anna@example.org")


def taking(annotation: object) -> Signature:
    """Return the signature of a task with one parameter, `x`, of this type."""

    def task(x: Any) -> None: ...

    task.__annotations__["x"] = annotation
    return Signature("shop.task", task)


def returning(annotation: object) -> Signature:
    def task() -> Any: ...

    task.__annotations__["return"] = annotation
    return Signature("shop.task", task)


def loose(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 (no annotation is the point)
    ...


UNTYPED = Signature("shop.task", loose)


def sent(signature: Signature, value: object) -> Any:
    """Return the value of `x` as the worker gets it."""
    args, kwargs = signature.decode(signature.encode((value,), {}))
    assert args == ()
    assert list(kwargs) == ["x"]
    return kwargs["x"]


def same(one: object, other: object) -> bool:
    """Say whether two values are equal and of the same type, part by part."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return one == other


def refused(signature: Signature, *args: Any, **kwargs: Any) -> EncodeError:
    with pytest.raises(EncodeError) as caught:
        signature.encode(args, kwargs)
    return caught.value


# Arguments with a type


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (None, None),
        (bool, True),
        (int, 0),
        (int, -(2**63)),
        (int, 2**64 - 1),
        (int, 2**70),
        (float, 1.5),
        (float, -0.0),
        (float, 1e308),
        (str, ""),
        (str, "grüße \U0001f600"),
        (str, "a\0b"),
        (str, '"\\\n[{'),
        (bytes, b""),
        (bytes, bytes(range(256))),
        (datetime, AT),
        (datetime, AT.replace(tzinfo=None)),
        (date, date(2024, 2, 29)),
        (time, time(23, 59, 59, 999999)),
        (timedelta, timedelta(days=3, microseconds=1)),
        (uuid.UUID, ID),
        (Decimal, Decimal("0.10")),
        (Decimal, Decimal("1E+400")),
        (Colour, Colour.BLUE),
        (Level, Level.HIGH),
        (Literal["a", "b"], "b"),
        (Address, Address("Kai", 7)),
        (Line, LINE),
        (Order, Order([LINE, LINE], AT)),
        (User, USER),
        (Point, Point(1, 2)),
        (Options, {"colour": Colour.RED}),
        (list, [1, "a", None, [2.5]]),
        (dict, {"a": {"b": [True]}}),
        (list[datetime], [AT]),
        (list[Line], [LINE]),
        (list[User], [USER, USER]),
        (set[uuid.UUID], {ID}),
        (frozenset[int], frozenset({1, 2})),
        (tuple[int, str], (1, "a")),
        (tuple[Decimal, ...], (Decimal(1), Decimal("2.50"))),
        (dict[str, Decimal], {"a": Decimal("0.1")}),
        (dict[int, datetime], {5: AT}),
        (dict[uuid.UUID, set[Colour]], {ID: {Colour.RED}}),
        (dict[str, User], {"anna": USER}),
        (dict[str, list[tuple[int, bytes]]], {"a": [(1, b"\xff")]}),
        (Optional[datetime], AT),  # noqa: UP045 (both spellings must work)
        (datetime | None, AT),
        (list[Line] | None, [LINE]),
        (User | None, USER),
        (int | str, "7"),
        (int | str, 7),
        (int | float, 7.0),
        (Sequence[int], [1, 2]),
        (Mapping[str, int], {"a": 1}),
        (Annotated[int, msgspec.Meta(gt=0)], 5),
        (object, {"a": [1, None]}),
    ],
    ids=repr,
)
def test_an_argument_arrives_as_the_value_and_type_it_was(annotation: object, value: Any) -> None:
    assert same(sent(taking(annotation), value), value)


@pytest.mark.parametrize(
    "annotation",
    [Optional[int], str | None, datetime | None, Line | None, User | None, list[User] | None, Any],  # noqa: UP045
    ids=repr,
)
def test_none_arrives_as_none_where_it_is_allowed(annotation: object) -> None:
    assert sent(taking(annotation), None) is None


@pytest.mark.parametrize(
    "value",
    [
        User(id=7, joined=AT),
        User(id=7, joined=AT, email=None),
        User(id=7, joined=AT, email="null"),
    ],
    ids=repr,
)
def test_a_model_may_hold_none(value: User) -> None:
    assert same(sent(taking(User), value), value)
    assert same(sent(taking(list[User]), [value]), [value])
    assert same(
        sent(taking(dict[str, User | None]), {"a": value, "b": None}), {"a": value, "b": None}
    )


def test_none_beside_a_model_is_no_problem() -> None:
    def task(user: User, note: str | None) -> None: ...

    signature = Signature("shop.task", task)

    assert signature.decode(signature.encode((USER, None), {})) == (
        (),
        {"user": USER, "note": None},
    )


class Aliased(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: uuid.UUID
    at: datetime
    colour: Colour


class Counted(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    names: list[str]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.names)


@pytest.mark.parametrize(
    "value",
    [
        Aliased(userId=7),
        Strict(id=ID, at=AT, colour=Colour.RED),
        Counted(names=["a"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_arrives_whatever_its_settings(value: pydantic.BaseModel) -> None:
    assert same(sent(taking(type(value)), value), value)


def test_a_moment_is_the_same_moment_in_any_time_zone() -> None:
    moment = AT.astimezone(timezone(timedelta(hours=9, minutes=30)))

    arrived = sent(taking(datetime), moment)

    assert arrived == moment
    assert arrived.utcoffset() == moment.utcoffset()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, b"bytes"),
        (str, ID),
        (str, AT),
        (datetime, "2024-05-01T12:30:15.123456Z"),
        (dict[str, int], {1: 2}),
        (float, 2**53 + 1),
        (set[int], [1, 2]),
        (Address, {"street": "Kai", "number": 7}),
    ],
    ids=repr,
)
def test_what_would_arrive_as_something_else_is_refused(annotation: object, value: object) -> None:
    """JSON could carry it, but the worker would get another value than was passed."""
    assert "would arrive as" in str(refused(taking(annotation), value))


def test_a_secret_that_its_model_hides_is_refused_not_lost() -> None:
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr
        note: str = pydantic.Field("", exclude=True)

    refusal = refused(taking(Login), Login(password=pydantic.SecretStr("hunter2")))
    assert "hunter2" not in str(refusal)


def test_objects_that_only_equal_themselves_arrive() -> None:
    @dataclass(eq=False)
    class Token:
        text: str

    arrived = sent(taking(list[Token]), [Token("a")])
    assert arrived[0].text == "a"


def test_payloads_written_by_hand_are_read_as_their_types() -> None:
    """As on the command line, where JSON is all there is."""
    args, kwargs = taking(Address).decode('{"x":{"street":"Kai","number":7}}')
    assert (args, kwargs) == ((), {"x": Address("Kai", 7)})


typed = st.one_of(
    st.tuples(st.just(int), st.integers(-(2**200), 2**200)),
    st.tuples(st.just(float), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(str), st.text()),
    st.tuples(st.just(bytes), st.binary()),
    st.tuples(st.just(datetime), st.datetimes()),
    st.tuples(st.just(datetime), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just(date), st.dates()),
    st.tuples(st.just(uuid.UUID), st.uuids()),
    st.tuples(st.just(Decimal), st.decimals(allow_nan=False)),
    st.tuples(st.just(Colour), st.sampled_from(Colour)),
    st.tuples(st.just(Line), st.builds(Line, st.uuids(), st.decimals(allow_nan=False))),
    st.tuples(
        st.just(User),
        st.builds(User, id=st.integers(), joined=st.datetimes(timezones=st.just(UTC))),
    ),
    st.tuples(st.just(Address), st.builds(Address, st.text(), st.integers(0, 9))),
    st.tuples(st.just(set[int]), st.sets(st.integers())),
    st.tuples(
        st.just(dict[str, bytes | None]), st.dictionaries(st.text(), st.none() | st.binary())
    ),
)


@given(typed)
def test_whatever_fits_its_type_arrives(pair: tuple[object, Any]) -> None:
    annotation, value = pair

    assert sent(taking(annotation), value) == value


# Ways to pass arguments


def plain(a, b=2):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b


def positional_only(a, b=2, /, c=3):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b, c


def all_optional(a=1, b=2, /):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b


def keyword_only(a, *, b, c=3):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b, c


def variadic(a, b=2, *args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN201
    return a, b, args


def mixed(a, /, b, *args, c=3, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201
    return a, b, args, c, kwargs


def only_variadic(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN201
    return args, kwargs


def shadowed(a, /, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201
    return a, kwargs


def optional_shadowed(a=1, b=2, /, c=3, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201
    return a, b, c, kwargs


def oddly_named(self, cls=1, _private=2, größe=3, type=4):  # type: ignore[no-untyped-def]  # noqa: PLC2401, A002, ANN001, ANN201
    return self, cls, _private, größe, type


def nothing():  # type: ignore[no-untyped-def]  # noqa: ANN201
    return ()


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (nothing, call()),
        (plain, call(1)),
        (plain, call(1, 5)),
        (plain, call(b=5, a=1)),
        (plain, call(1, b=None)),
        (plain, call(None)),
        (only_variadic, call(None)),
        (positional_only, call(1)),
        (positional_only, call(1, 5)),
        (positional_only, call(1, c=6)),
        (positional_only, call(1, 5, 6)),
        (all_optional, call()),
        (all_optional, call(5)),
        (all_optional, call(5, 6)),
        (keyword_only, call(1, b=2)),
        (keyword_only, call(a=1, b=2, c=4)),
        (variadic, call(1)),
        (variadic, call(a=1, b=5)),
        (variadic, call(1, 5)),
        (variadic, call(1, 5, 6, 7)),
        (mixed, call(1, 2)),
        (mixed, call(1, 2, 3)),
        (mixed, call(1, 2, 3, 4, c=5, d=6)),
        (mixed, call(1, b=2, d=6)),
        (mixed, call(1, 2, a=5)),
        (only_variadic, call()),
        (only_variadic, call(1, 2, a=3)),
        (only_variadic, call(args=1, kwargs=2)),
        (shadowed, call(1, a=2)),
        (shadowed, call(1, b=2)),
        (optional_shadowed, call()),
        (optional_shadowed, call(a=5)),
        (optional_shadowed, call(b=5, c=6)),
        (optional_shadowed, call(7, a=5, b=6)),
        (optional_shadowed, call(7, 8, 9, a=5)),
        (oddly_named, call(0)),
        (oddly_named, call(self=0, cls=5, _private=6, größe=7, type=8)),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value),
)
def test_the_worker_makes_the_same_call(
    function: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    signature = Signature("shop.task", function)
    args, kwargs = signature.decode(signature.encode(*given))

    assert function(*args, **kwargs) == function(*given[0], **given[1])


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (nothing, call(1)),
        (nothing, call(a=1)),
        (plain, call()),
        (plain, call(b=1)),
        (plain, call(1, 2, 3)),
        (plain, call(1, a=1)),
        (plain, call(1, c=3)),
        (positional_only, call(a=1)),
        (positional_only, call(1, b=2)),
        (all_optional, call(b=5)),
        (keyword_only, call(1)),
        (keyword_only, call(1, 2)),
        (variadic, call()),
        (variadic, call(1, 2, b=3)),
        (mixed, call(1)),
        (mixed, call(b=1)),
        (shadowed, call()),
        (shadowed, call(a=1)),
        (optional_shadowed, call(1, 2, 3, c=4)),
        (optional_shadowed, call(1, 2, 3, 4)),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value),
)
def test_a_call_python_would_refuse_is_refused(
    function: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    with pytest.raises(TypeError):
        function(*given[0], **given[1])

    error = refused(Signature("shop.task", function), *given[0], **given[1])
    assert "it takes (" in str(error)


def test_a_default_is_left_to_the_worker() -> None:
    """The worker may run a newer version, with another default."""

    def old(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    def new(a: int, b: int = 20, *, c: int = 30) -> tuple[int, int, int]:
        return a, b, c

    payload = Signature("shop.task", old).encode((1,), {})
    args, kwargs = Signature("shop.task", new).decode(payload)

    assert json.loads(payload) == {"a": 1}
    assert new(*args, **kwargs) == (1, 20, 30)


def test_a_default_passed_on_purpose_is_kept() -> None:
    assert json.loads(Signature("shop.task", plain).encode((1, 2), {})) == {"a": 1, "b": 2}


def test_a_default_need_not_be_json() -> None:
    marker = object()

    def task(a: int = 1, b: Any = marker) -> object:
        return b

    signature = Signature("shop.task", task)
    args, kwargs = signature.decode(signature.encode((), {}))

    assert task(*args, **kwargs) is marker


def test_further_arguments_have_types_too() -> None:
    def task(*moments: datetime, **users: User) -> None: ...

    signature = Signature("shop.task", task)

    assert signature.decode(signature.encode((AT, AT), {"anna": USER})) == (
        (AT, AT),
        {"anna": USER},
    )
    assert refused(signature, AT, "yesterday").argument == "moments"
    assert refused(signature, anna=7).argument == "users"


def test_a_decorated_function_has_the_signature_of_the_function() -> None:
    import functools

    def task(x: datetime) -> None: ...

    @functools.wraps(task)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert sent(Signature("shop.task", wrapper), AT) == AT


# Arguments that do not fit


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, 7.5),
        (int, True),
        (int, None),
        (float, "1.5"),
        (str, 7),
        (str, None),
        (bool, 1),
        (bytes, "not base64!"),
        (datetime, "yesterday"),
        (datetime, 7),
        (uuid.UUID, "018f"),
        (Decimal, "ten"),
        (Colour, "green"),
        (Colour, Level.LOW),
        (Literal["a", "b"], "c"),
        (Address, {"number": 7}),
        (Address, "Kai 7"),
        (Line, {"product": "x", "price": "1"}),
        (User, {"id": "x"}),
        (User, 7),
        (list[int], [1, "2"]),
        (list[int], {"a": 1}),
        (set[int], ["a"]),
        (tuple[int, str], (1,)),
        (dict[str, int], {"a": "b"}),
        (dict[int, int], {"a": 1}),
        (list[User], [USER, {"id": 1}]),
        (Annotated[int, msgspec.Meta(gt=0)], 0),
        (int | None, "7"),
    ],
    ids=repr,
)
def test_an_argument_of_another_type_is_refused_by_name(annotation: object, value: object) -> None:
    error = refused(taking(annotation), value)

    assert (error.task, error.argument) == ("shop.task", "x")
    assert str(error).startswith("argument 'x' of task 'shop.task': ")


def test_the_refusal_says_what_was_expected_and_where() -> None:
    error = refused(taking(Order), {"at": AT, "lines": [{"product": ID, "price": []}]})

    assert str(error) == (
        "argument 'x' of task 'shop.task': expected `decimal`, got `array` "
        "- at `$.x.lines[0].price`"
    )


def test_the_refusal_names_the_argument_among_many() -> None:
    def task(first: int, second: list[int], third: Any = None) -> None: ...

    signature = Signature("shop.task", task)

    assert refused(signature, 1, [1, "x"]).argument == "second"
    assert refused(signature, 1, [1], object()).argument == "third"
    assert refused(signature, 1, [1], "\ud800").argument == "third"
    assert refused(signature, 1, [1], math.nan).argument == "third"
    assert refused(signature, 1, [1], {1: 2}).argument == "third"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (call(), "missing required argument 'a'"),
        (call(1, c=3), "unexpected keyword argument 'c'"),
        (call(1, 2, 3), "extra positional arguments provided"),
        (call(1, a=1), "argument 'a' given by name and position"),
    ],
    ids=repr,
)
def test_a_call_that_does_not_fit_is_told_what_the_task_takes(
    given: tuple[tuple[Any, ...], dict[str, Any]], problem: str
) -> None:
    def task(a: int, b: str = "x") -> None: ...

    error = refused(Signature("shop.task", task), *given[0], **given[1])

    assert str(error) == (f"call of task 'shop.task': {problem}; it takes (a: int, b: str = 'x')")


def test_the_name_of_an_argument_is_quoted_in_part() -> None:
    error = refused(Signature("shop.task", lambda a: a), 1, **{"x" * 10_000_000: 1})

    assert "unexpected keyword argument 'xxx" in str(error)
    assert len(str(error)) < 5_000


@pytest.mark.parametrize("function", [plain, keyword_only, variadic, mixed])
def test_what_a_task_takes_is_told_as_the_code_says_it(function: Callable[..., Any]) -> None:
    """A parameter without annotation is not shown with one."""
    assert "Any" not in str(refused(Signature("shop.task", function)))


class Socket:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Socket(),
        object(),
        print,
        lambda: 1,
        iter([1]),
        int,
        Exception("x"),
        ...,
        1j,
        {"a": [Socket()]},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [Any, int, list[Any], dict[str, Any]], ids=repr)
def test_what_has_no_json_form_is_refused_by_name(annotation: object, value: object) -> None:
    assert refused(taking(annotation), value).argument == "x"


def test_what_has_no_json_form_is_told_what_has() -> None:
    assert str(refused(UNTYPED, Socket())) == (
        f"argument 'x' of task 'shop.task': a value of type {Socket.__module__}.Socket has no JSON form; pass "
        "plain data (JSON types, datetime, UUID, Decimal, Enum, bytes, a dataclass, a msgspec "
        "struct or a pydantic model), or its id"
    )


def test_an_annotation_nobody_can_decode_is_refused_by_name() -> None:
    error = refused(taking(Socket), {"a": 1})

    assert error.argument == "x"
    assert "Socket cannot be built from JSON" in str(error)


@pytest.mark.parametrize("key", [True, None, (1, 2)], ids=repr)
def test_a_key_json_cannot_have_is_called_a_key(key: object) -> None:
    """`a bool has no JSON form` is not true, and hides that the key is meant."""
    assert "key" in str(refused(UNTYPED, {key: 1}))


# Numbers JSON does not have


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("annotation", "wrap"),
    [
        (Any, lambda n: n),
        (Any, lambda n: [n]),
        (Any, lambda n: {"a": (1, n)}),
        (float, lambda n: n),
        (float | None, lambda n: n),
        (list[float], lambda n: [1.0, n]),
        (list[float | None], lambda n: [None, n]),
        (tuple[float | None, ...], lambda n: (n,)),
        (set[float | None], lambda n: {n}),
        (dict[str, float | None], lambda n: {"a": n}),
    ],
    ids=lambda value: "" if callable(value) and not isinstance(value, type) else repr(value),
)
def test_nan_and_infinity_are_refused_wherever_they_are(
    annotation: object, wrap: Callable[[float], object], number: float
) -> None:
    error = refused(taking(annotation), wrap(number))

    assert error.argument == "x"
    assert error.problem == "NaN and infinity have no JSON form; pass None or a string"


@dataclass
class Reading:
    value: float | None


class Measurement(msgspec.Struct):
    value: float | None


class Sample(pydantic.BaseModel):
    value: float | None


@pytest.mark.parametrize("kind", [Reading, Measurement, Sample])
def test_nan_inside_an_object_does_not_become_none(kind: type[Any]) -> None:
    assert refused(taking(kind), kind(value=math.nan)).argument == "x"
    assert refused(taking(list[kind]), [kind(value=None), kind(value=math.inf)]).argument == "x"


def test_the_word_null_is_no_number() -> None:
    assert sent(UNTYPED, {"null": ["null", None, 1.5]}) == {"null": ["null", None, 1.5]}


@pytest.mark.parametrize("annotation", [Any, int, list[int]], ids=repr)
def test_a_number_of_five_thousand_digits_is_refused(annotation: object) -> None:
    value: object = 10**5000

    assert (
        refused(taking(annotation), [value] if annotation == list[int] else value).argument == "x"
    )


def test_a_number_that_is_too_long_is_refused_without_advice_about_the_interpreter() -> None:
    """The reader must not be sent to sys.set_int_max_str_digits()."""
    assert "sys." not in str(refused(UNTYPED, 10**5000))


# Texts


@pytest.mark.parametrize(
    "value", ["\ud800", "a\udfffb", ["\ud800"], {"\ud800": 1}, {"a": {"b": "\udc80"}}], ids=ascii
)
@pytest.mark.parametrize("annotation", [Any, object], ids=repr)
def test_lone_surrogates_are_refused(annotation: object, value: object) -> None:
    error = refused(taking(annotation), value)

    assert error.argument == "x"
    assert error.problem == "holds characters that are no valid Unicode (lone surrogates)"


def test_nul_arrives_but_never_stands_in_the_payload() -> None:
    """PostgreSQL refuses a NUL in text; escaped, it is six harmless letters."""
    payload = UNTYPED.encode(("a\0b",), {})

    assert "\0" not in payload
    assert UNTYPED.decode(payload) == ((), {"x": "a\0b"})


# Depth and size


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_a_value_may_be_deep() -> None:
    value = nested(DEPTH_LIMIT - 1)

    assert sent(UNTYPED, value) == value


@pytest.mark.parametrize("depth", [64, 65, 66, 1_000, 100_000])
def test_a_value_that_is_too_deep_is_refused_by_name(depth: int) -> None:
    error = refused(UNTYPED, nested(depth))

    assert error.argument == "x"
    assert error.problem == "nested deeper than 64 levels; flatten it"


@pytest.mark.parametrize("annotation", [Any, list, dict[str, Any], object], ids=repr)
def test_a_value_that_holds_itself_is_refused(annotation: object) -> None:
    value: Any = {} if annotation == dict[str, Any] else []
    if isinstance(value, dict):
        value["self"] = value
    else:
        value.append(value)

    assert refused(taking(annotation), value).argument == "x"


def test_many_brackets_are_not_deep() -> None:
    flat = [[] for _ in range(1_000)]
    text = '[{"' * 1_000 + "\\"

    assert sent(UNTYPED, flat) == flat
    assert sent(UNTYPED, [text, text]) == [text, text]


def test_a_payload_may_be_exactly_as_large_as_the_limit() -> None:
    text = "x" * (PAYLOAD_LIMIT - len('{"x":""}'))

    payload = UNTYPED.encode((text,), {})

    assert len(payload) == PAYLOAD_LIMIT == 256 * 1024
    assert UNTYPED.decode(payload) == ((), {"x": text})


def test_a_payload_one_byte_over_the_limit_is_refused() -> None:
    text = "x" * (PAYLOAD_LIMIT - len('{"x":""}') + 1)

    with pytest.raises(PayloadTooLarge) as caught:
        UNTYPED.encode((text,), {})

    assert (caught.value.task, caught.value.size) == ("shop.task", PAYLOAD_LIMIT + 1)
    assert caught.value.limit == PAYLOAD_LIMIT


def test_the_size_of_a_payload_is_counted_in_bytes() -> None:
    text = "é" * (PAYLOAD_LIMIT // 2)

    with pytest.raises(PayloadTooLarge) as caught:
        UNTYPED.encode((text,), {})

    assert caught.value.size == PAYLOAD_LIMIT + len('{"x":""}')


# Arguments without a type


@pytest.mark.parametrize(
    "value",
    [
        AT,
        date(2024, 5, 1),
        timedelta(1),
        ID,
        Decimal(1),
        b"",
        b"abc",
        set(),
        {1, 2},
        frozenset({1}),
        {1: "a"},
        {1: "a", "1": "b"},
        {1.5: "a"},
        Colour.RED,
        LINE,
        Address("Kai"),
        USER,
        [AT],
        {"a": [{"b": {1: 2}}]},
        (1, {2}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("loosely", [lambda v: (UNTYPED, v), lambda v: (taking(list[Any]), [v])])
def test_a_value_that_would_change_its_type_on_the_way_is_refused(
    value: object, loosely: Callable[[object], tuple[Signature, object]]
) -> None:
    signature, argument = loosely(value)
    error = refused(signature, argument)

    assert error.argument == "x"
    assert "would arrive as" in error.problem
    assert "annotate the parameter" in error.problem


def test_the_refusal_shows_the_change() -> None:
    assert str(refused(UNTYPED, {1: "a"})) == (
        "argument 'x' of task 'shop.task': {1: 'a'} would arrive as {'1': 'a'}; annotate the "
        "parameter with the type of what you pass, or pass what the annotation says"
    )


def test_the_refusal_shows_only_a_little_of_a_large_value() -> None:
    assert len(str(refused(UNTYPED, set(range(10_000))))) < 400


def test_a_tuple_without_a_type_arrives_as_a_list() -> None:
    assert same(sent(UNTYPED, (1, ("a", {"b": (2,)}))), [1, ["a", {"b": [2]}]])
    assert same(sent(UNTYPED, ()), [])


@pytest.mark.parametrize(
    "annotation", [Any, list[Any], dict[str, Any], list, dict, Any | None], ids=repr
)
def test_a_type_that_leaves_parts_open_is_checked_like_none(annotation: object) -> None:
    value: object = {"a": AT} if "dict" in repr(annotation) else [AT]

    assert "would arrive as" in refused(taking(annotation), value).problem


texts = st.text(st.characters(exclude_categories=()), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    # No longer than 4,300 digits: Hypothesis must be able to print them.
    st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400, 10**4299, -(10**4299)]),
    st.floats(),
    texts,
    st.sampled_from(["", "\0", "\ud800", "\udfff", "null", '"', "\\", "[" * 100, "\x7f", "\u2028"]),
)


def within(value: object, depth: int, kind: str) -> object:
    for _ in range(depth):
        value = {"": value} if kind == "dict" else (value,) if kind == "tuple" else [value]
    return value


jsonish = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(st.integers() | st.floats() | st.booleans() | st.none(), inner, max_size=2),
        st.builds(
            within, inner, st.sampled_from([1, 60, 63, 64, 65, 200, 5_000]),
            st.sampled_from(["list", "dict", "tuple"]),
        ),
    ),
    max_leaves=8,
)  # fmt: skip


def listed(value: object) -> object:
    if isinstance(value, list | tuple):
        return [listed(part) for part in value]
    if isinstance(value, dict):
        return {key: listed(part) for key, part in value.items()}
    return value


@given(jsonish)
def test_a_value_without_a_type_arrives_unchanged_or_is_refused(value: object) -> None:
    try:
        payload = UNTYPED.encode((value,), {})
    except EnqueueError as error:
        str(error).encode()
        return
    payload.encode()
    assert len(payload.encode()) <= PAYLOAD_LIMIT
    assert "\0" not in payload

    args, kwargs = UNTYPED.decode(payload)
    assert args == ()
    assert same(kwargs, {"x": listed(value)})


@given(st.lists(jsonish, max_size=3), st.dictionaries(texts, jsonish, max_size=3))
def test_further_values_without_a_type_arrive_unchanged_or_are_refused(
    args: list[object], kwargs: dict[str, object]
) -> None:
    signature = Signature("shop.task", only_variadic)
    try:
        payload = signature.encode(tuple(args), kwargs)
    except EnqueueError:
        return

    back = signature.decode(payload)
    assert same(list(back[0]), listed(args))
    assert same(back[1], listed(kwargs))


# Stored calls nobody can read


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_that_is_no_call_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        taking(int).decode(text)

    assert caught.value.what == "the payload of a job of task 'shop.task'"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("xyz"), inner),
    )
)
def test_any_json_is_a_call_or_a_decode_error(value: object) -> None:
    """Written by Python's own json, which allows NaN and Infinity."""
    for signature in (UNTYPED, taking(datetime), taking(User), Signature("shop.task", mixed)):
        try:
            args, kwargs = signature.decode(json.dumps(value))
        except DecodeError:
            continue
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"x":1',
        '{"x":1}{"x":1}',
        '{"x":1,"y":2}',
        '{"x":NaN}',
        '{"x":Infinity}',
        '{"x":1e999}',
        '{"x":' + "9" * 1_000_000 + "}",
        '{"x":' + "[" * 100_000,
        '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"x":"\\ud800"}',
        '{"x":"\ud800"}',
        '{"x":"\0"}',
        "\ufeff{}",
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_a_poisoned_payload_is_a_decode_error(payload: str) -> None:
    with pytest.raises(
        DecodeError, match=r"^the payload of a job of task 'shop\.task' cannot be read"
    ):
        UNTYPED.decode(payload)


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        assert self.number > 0


class Known(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        {"anna": 1}[self.name]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(Positive, '{"x":{"number":-1}}'), (Known, '{"x":{"name":"bob"}}')],
    ids=["AssertionError", "KeyError"],
)
def test_a_type_that_refuses_its_own_data_makes_a_decode_error(kind: type, payload: str) -> None:
    """Its check may have become stricter since the job was put."""
    with pytest.raises(DecodeError):
        taking(kind).decode(payload)


# Results


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (str, "a\0b"),
        (datetime, AT),
        (uuid.UUID, ID),
        (Decimal, Decimal("0.10")),
        (bytes, b"\xff"),
        (Colour, Colour.RED),
        (Line, LINE),
        (Address, Address("Kai")),
        (User, USER),
        (User, User(id=1, joined=AT)),
        (list[User], [USER]),
        (dict[int, datetime], {1: AT}),
        (set[int], {1, 2}),
        (Any, {"a": [1, None]}),
        (float | None, None),
        (None, None),
    ],
    ids=repr,
)
def test_a_result_comes_back_as_the_value_and_type_it_was(annotation: object, value: Any) -> None:
    signature = returning(annotation)

    assert same(signature.decode_result(signature.encode_result(value)), value)


def test_no_result_is_stored_as_nothing() -> None:
    assert returning(Any).encode_result(None) is None
    assert returning(int).decode_result(None) is None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, "7"), (None, 5), (datetime, "yesterday"), (User, {"id": "x"}), (Any, object)],
    ids=repr,
)
def test_a_result_of_another_type_is_refused(annotation: object, value: object) -> None:
    with pytest.raises(EncodeError):
        returning(annotation).encode_result(value)


@pytest.mark.parametrize(
    "value",
    [object(), "x" * PAYLOAD_LIMIT, nested(100), 10**5000, "\ud800"],
    ids=lambda v: type(v).__name__,
)
def test_a_refused_result_is_called_a_result(value: object) -> None:
    """The reader looks for an argument called `return` otherwise, or for large arguments."""
    with pytest.raises(EnqueueError) as caught:
        returning(Any).encode_result(value)

    assert "argument" not in str(caught.value)
    assert "result" in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": math.nan}], ids=repr)
@pytest.mark.parametrize("annotation", [Any, object], ids=repr)
def test_nan_as_a_result_does_not_become_none(annotation: object, value: object) -> None:
    with pytest.raises(EnqueueError):
        returning(annotation).encode_result(value)


@pytest.mark.parametrize("kind", [Reading, Measurement, Sample])
def test_nan_inside_a_result_does_not_become_none(kind: type[Any]) -> None:
    with pytest.raises(EnqueueError):
        returning(kind).encode_result(kind(value=math.nan))


@pytest.mark.parametrize("value", [AT, b"abc", {1, 2}, {1: 2}, Decimal(1), LINE], ids=repr)
def test_a_result_that_would_change_its_type_on_the_way_is_refused(value: object) -> None:
    with pytest.raises(EnqueueError):
        returning(Any).encode_result(value)


@given(jsonish)
def test_a_result_without_a_type_comes_back_unchanged_or_is_refused(value: object) -> None:
    signature = returning(Any)
    try:
        text = signature.encode_result(value)
    except EnqueueError:
        return

    assert same(signature.decode_result(text), listed(value))


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_that_is_no_result_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError, match=r"^the result of task 'shop\.task' cannot be read"):
        returning(datetime).decode_result(text)


# Signatures that can never work


@pytest.mark.parametrize("annotation", [str | bytes, 5, set[int] | list[int]], ids=repr)
def test_an_annotation_json_cannot_carry_is_a_mistake_of_the_program(annotation: object) -> None:
    with pytest.raises(ConfigError, match="has an annotation JSON cannot carry"):
        taking(annotation)


def test_a_parameter_cannot_begin_with_two_underscores() -> None:
    def task(__x: int) -> None: ...  # noqa: PYI063 (the point of the test)

    with pytest.raises(ConfigError) as caught:
        Signature("shop.task", task)

    assert str(caught.value) == (
        "task 'shop.task': the parameter '__x' cannot begin with two underscores"
    )


# What people write


def order(user_id: int, at: datetime | None = None, amount: Decimal = Decimal(1)) -> None: ...


ORDER = Signature("order", order)


@pytest.mark.parametrize(
    ("written", "payload"),
    [
        ('{"user_id": 1}', '{"user_id":1}'),
        ("[1]", '{"user_id":1}'),
        (' [1, "2026-11-16T00:00:00Z"] ', '{"user_id":1,"at":"2026-11-16T00:00:00Z"}'),
        (
            '{"user_id": 1, "amount": "0.10000000000000000000001"}',
            '{"user_id":1,"amount":"0.10000000000000000000001"}',
        ),
        (f"[{2**70}]", f'{{"user_id":{2**70}}}'),
    ],
)
def test_arguments_written_by_hand_become_a_payload_the_worker_reads(
    written: str, payload: str
) -> None:
    assert ORDER.read(written) == payload
    ORDER.decode(payload)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{}", "missing required field `user_id`"),
        ('{"user_id": "x"}', "argument 'user_id' of task 'order': expected `int`, got `str`"),
        ('{"user_id": 1, "amuont": 2}', "unknown field `amuont`"),
        ("[1, null, 3, 4]", "4 arguments are too many"),
        ("user_id=1", "this is not JSON"),
        ("", "this is not JSON"),
        ("3", "expected `object`, got `int`"),
        ('{"user_id": ' + "[" * 70 + "]" * 70 + "}", "nested deeper"),
    ],
)
def test_arguments_written_wrongly_are_refused_with_what_the_task_takes(
    written: str, problem: str
) -> None:
    with pytest.raises(EncodeError) as caught:
        ORDER.read(written)
    assert problem in str(caught.value)
    assert "it takes (user_id: int" in str(caught.value)


def test_arguments_written_by_hand_have_the_same_limit() -> None:
    with pytest.raises(PayloadTooLarge):
        Signature("t", lambda text: None).read(f'["{"x" * PAYLOAD_LIMIT}"]')


# Keys (T12)


def anything(value: object, other: object = None) -> object:
    return value


ANYTHING = Signature("t", anything)
MANY = {str(number): 0 for number in range(KEY_LIMIT)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"value": 1, "value": 2}', "value"),
        ('{"value": {"a": {"b": 1, "c": 2, "b": 3}}}', "b"),
        ('{"value": [{"a": 1}, {"a": 1, "\\u0061" : 2}]}', "a"),
        ('[{"a": 1, "a": 2}]', "a"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, key: str) -> None:
    with pytest.raises(EncodeError) as problem:
        ANYTHING.read(text)
    assert str(problem.value) == (
        f"call of task 't': the key {key!r} is there twice; keep one of them"
    )
    if text.startswith("{"):
        with pytest.raises(DecodeError, match=f"the key '{key}' is there twice"):
            ANYTHING.decode(text)


def test_one_of_many_keys_that_is_there_twice_is_found_at_once() -> None:
    """By counting each key in all of them it took a second; every decode would."""
    keys = [*map(str, range(KEY_LIMIT - 3)), "last", "last"]
    text = '{"value":{' + ",".join(f'"{key}":0' for key in keys) + "}}"
    began = time_module.process_time()
    with pytest.raises(DecodeError, match="the key 'last' is there twice"):
        ANYTHING.decode(text)
    assert time_module.process_time() - began < 0.6


@pytest.mark.parametrize(
    "text",
    [
        '{"value":[{"a":1},{"a":1}],"other":{"value":{"a":2}}}',
        '{"value": "a:a:{\\"a\\":1,\\"a\\":2}"}',
        '{ "value" :"x", "other":{"other":1e400}}',
    ],
)
def test_the_same_key_in_another_object_is_fine(text: str) -> None:
    assert json.loads(ANYTHING.read(text.replace("1e400", "1"))) == json.loads(
        text.replace("1e400", "1")
    )
    assert ANYTHING.decode(text.replace("1e400", "1"))[1]["value"]


def test_too_many_keys_are_refused_by_name_with_the_way_out() -> None:
    ANYTHING.encode((list(MANY),), {})
    ANYTHING.encode(({"x:y": [":" * 2 * KEY_LIMIT]},), {})
    most = dict(list(MANY.items())[:-1])
    payload = ANYTHING.encode((most,), {})
    assert ANYTHING.decode(payload)[1]["value"] == most
    assert ANYTHING.read(payload) == payload
    words = r"it has more than 10,000 keys; put the data where both sides can reach it"
    with pytest.raises(EncodeError, match=rf"argument 'other' of task 't': {words}"):
        ANYTHING.encode((1, {"x": MANY}), {})
    with pytest.raises(EncodeError, match=rf"call of task 't': {words}"):
        ANYTHING.encode((most, most), {})
    too_many = json.dumps({"value": MANY}, separators=(",", ":"))
    with pytest.raises(EncodeError, match=words):
        ANYTHING.read(too_many)
    with pytest.raises(DecodeError, match=words):
        ANYTHING.decode(too_many)
    with pytest.raises(EncodeError, match=f"the result of task 't': {words}"):
        ANYTHING.encode_result(MANY | {"x": 1})


def test_a_text_of_megabytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(PayloadTooLarge):
        ANYTHING.read("[" * 10_000_000)
    indented = json.dumps({"value": list(range(30_000))}, indent=4)
    assert PAYLOAD_LIMIT < len(indented) < TEXT_LIMIT
    assert ANYTHING.read(indented) == ANYTHING.encode((list(range(30_000)),), {})


class _Wrapped(msgspec.Struct):
    inside: msgspec.Raw


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (msgspec.Raw, lambda raw: raw),
        (list[msgspec.Raw], lambda raw: [raw]),
        (_Wrapped, _Wrapped),
    ],
)
def test_raw_json_has_no_key_twice_either(kind: Any, value: Callable[[Any], Any]) -> None:
    def task(given: Any) -> None: ...

    task.__annotations__["given"] = kind
    signature = Signature("t", task)
    with pytest.raises(EncodeError, match="'a' is there twice"):
        signature.encode((value(msgspec.Raw(b'{"a":1,"a":2}')),), {})
    payload = signature.encode((value(msgspec.Raw(b'{"a":1,"b":2}')),), {})
    assert signature.decode(payload)
    with pytest.raises(DecodeError, match="'a' is there twice"):
        signature.decode(payload.replace('"b"', '"a"'))


def test_no_stored_payload_is_larger_than_one_may_be() -> None:
    """Whoever writes to the store knows no limits."""
    with pytest.raises(DecodeError, match="the limit is 262,144"):
        UNTYPED.decode(f'{{"x":"{"y" * PAYLOAD_LIMIT}"}}')
