"""Arguments and results as JSON, checked against the task's signature.

A signature becomes a struct with one field per parameter. To encode a call is
to build that struct, write it as JSON and read it back through the typed
decoder: what a worker could not read fails here, in the caller's hands, with
the parameter named. Parameters left out stay out of the payload, so the
worker's own default applies.

Never pickle, never an import by a name that came out of the store.
"""

import inspect
import json
import math
import re
import typing
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import asdict

from fairlead.core.errors import ConfigError, DecodeError, EncodeError, PayloadTooLarge
from fairlead.core.text import SHOWN, brief, cut

PAYLOAD_LIMIT = 256 * 1024
DEPTH_LIMIT = 64
KEY_LIMIT = 10_000
TEXT_LIMIT = 4 * PAYLOAD_LIMIT
"""How many characters of JSON are read from a person, who may have indented it."""

_SHALLOW = 2 * DEPTH_LIMIT
"""How many bytes of JSON cannot be nested too deep: each level has two brackets."""
_LEAST_KEY = len('"":0,')
_IDENTITY: Any = object.__eq__
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^.`\[]*)")
# A struct binds these as a function does; positional-only ones it would also take by name.
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


class Signature:
    """The parameters and the return type of one task function."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        parameters, returns = _typed(task, function)
        self._parameters = parameters
        self._plain = all(parameter.kind in _PLAIN for parameter in parameters)
        self._required = all(parameter.default is parameter.empty for parameter in parameters)
        self._struct = _struct_of(task, parameters)
        self._encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode
        try:
            self._decode = msgspec.json.Decoder(self._struct, dec_hook=_decode_hook).decode
            self._decode_result = msgspec.json.Decoder(returns, dec_hook=_decode_hook).decode
            self._holds_raw = _holds_raw(self._struct)
        except TypeError as problem:
            raise ConfigError(
                f"task {task!r} has an annotation JSON cannot carry: {problem}"
            ) from None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the payload of a call, or say which argument does not fit."""
        call = self._bind(args, kwargs)
        try:
            payload = self._encode(call)
            if len(payload) > _SHALLOW:
                self._check_shape(payload)
            if b"null" in payload:
                self._check_finite(call)
            if self._holds_raw:
                check_keys(payload.decode())
            back = self._decode(payload)
        except EncodeError:
            raise
        except _UNFIT as problem:
            raise self._explain(call, problem) from None
        if call != back:
            self._check_same(call, back)
        return payload.decode()

    def decode(self, payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a stored call, which is no larger than `encode` makes one."""
        try:
            # Not how deep it is: to count brackets takes as long as to decode.
            if len(payload) > PAYLOAD_LIMIT:
                raise PayloadTooLarge(self.task, len(payload), PAYLOAD_LIMIT)
            call = self._decode(payload)
            bound = self._unbind(call)
            # As many colons as arguments: then no key is there twice, and nothing is nested.
            if payload.count(":") != len(bound[1]) and not self._wrote(payload, call):
                check_keys(payload)
        except Exception as problem:  # noqa: BLE001 (the types' own checks are user code)
            raise DecodeError(f"the payload of a job of task {self.task!r}", str(problem)) from None
        return bound

    def _wrote(self, payload: str, call: msgspec.Struct) -> bool:
        """Say whether `encode` wrote this: it writes no key twice, and not too many."""
        if self._holds_raw:
            return False  # What is raw is written again as it was read.
        try:
            written = self._encode(call)
        except Exception:  # noqa: BLE001 (values of the types' own making)
            return False
        return written == payload.encode() and not _too_many_keys(written)

    def read(self, text: str) -> str:
        """Return the payload of a call that a person wrote: a JSON object by name, or an array."""
        try:
            if len(text) > TEXT_LIMIT:
                raise PayloadTooLarge(self.task, len(text), PAYLOAD_LIMIT)
            if too_deep(text.encode()):
                raise RecursionError
            check_keys(text)
            payload = self._encode(self._decode(self._named(text)))
            self._check_shape(payload)
        except KeysRefused as problem:
            raise EncodeError(self.task, None, str(problem)) from None
        except (EncodeError, PayloadTooLarge):
            raise
        except msgspec.ValidationError as problem:
            path = _PATH.search(str(problem))
            name = path.group(1) if path else None
            told = _say(problem).removesuffix(f" - at `$.{name}`")
            raise EncodeError(self.task, name or None, f"{told}; it takes {self.takes}") from None
        except _UNFIT as problem:
            raise EncodeError(
                self.task, None, f"this is not JSON: {_say(problem)}; it takes {self.takes}"
            ) from None
        return payload.decode()

    def _named(self, text: str) -> bytes:
        """Return the arguments as a JSON object by name; raw, so that no number changes."""
        if not text.lstrip().startswith("["):
            return text.encode()
        values = msgspec.json.decode(text, type=list[msgspec.Raw])
        names = [p.name for p in self._parameters if p.kind in _POSITIONAL]
        if len(values) > len(names):
            raise EncodeError(
                self.task, None, f"{len(values)} arguments are too many; it takes {self.takes}"
            )
        return self._encode(dict(zip(names, values, strict=False)))

    def encode_result(self, value: object) -> str | None:
        """Return the JSON text of a result; None means there is none."""
        if value is None:
            return None
        try:
            text = self._encode(value)
            self._check_shape(text)
            if b"null" in text and _has_non_finite(value):
                raise EncodeError(self.task, "return", _NON_FINITE)
            back = self._decode_result(text)
        except EncodeError:
            raise
        except PayloadTooLarge as problem:
            told = f"takes {problem.size:,} bytes, the limit is {problem.limit:,}"
            raise EncodeError(self.task, "return", told) from None
        except _UNFIT as problem:
            raise EncodeError(self.task, "return", _say(problem)) from None
        if not _same(value, back):
            raise EncodeError(
                self.task,
                "return",
                f"{_brief(value)} would arrive as {_brief(back)}; annotate what the task returns",
            )
        return text.decode()

    def decode_result(self, text: str | None) -> Any:  # noqa: ANN401 (typed by the annotation)
        """Return a stored result as the type the task declares."""
        if text is None:
            return None
        try:
            return self._decode_result(text)
        except Exception as problem:  # noqa: BLE001 (as above)
            raise DecodeError(f"the result of task {self.task!r}", str(problem)) from None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Struct:
        try:
            if self._plain:
                return self._struct(*args, **kwargs)
            return self._struct(**_bound(self._parameters, args, kwargs))
        except TypeError as problem:
            raise EncodeError(
                self.task, None, f"{cut(_lower(str(problem)), SHOWN)}; it takes {self.takes}"
            ) from None

    def _unbind(self, call: msgspec.Struct) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._plain:
            values = asdict(call)
            if not self._required and msgspec.UNSET in values.values():
                values = {k: v for k, v in values.items() if v is not msgspec.UNSET}
            return (), values
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(call, parameter.name)
            if value is msgspec.UNSET:
                continue
            if parameter.kind is _VAR_POSITIONAL:
                # Names before `*args` must travel by position too.
                args = [*args, *kwargs.values(), *value]
                kwargs = {}
            elif parameter.kind is _VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    @property
    def takes(self) -> str:
        """The parameters, as people write them."""
        bare = [
            p.replace(annotation=p.empty) if p.annotation is Any else p for p in self._parameters
        ]
        return str(inspect.Signature(bare))

    def _check_shape(self, payload: bytes) -> None:
        if len(payload) > PAYLOAD_LIMIT:
            raise PayloadTooLarge(self.task, len(payload), PAYLOAD_LIMIT)
        if too_deep(payload):
            raise RecursionError
        if _too_many_keys(payload):
            raise KeysRefused(_TOO_MANY_KEYS)

    def _check_finite(self, call: msgspec.Struct) -> None:
        """Refuse NaN and infinity, which JSON can only write as null."""
        for name in call.__struct_fields__:
            value = getattr(call, name)
            if value is not msgspec.UNSET and _has_non_finite(value):
                raise EncodeError(self.task, name, _NON_FINITE)

    def _check_same(self, call: msgspec.Struct, back: msgspec.Struct) -> None:
        """Refuse values that would silently change on the way."""
        for name in call.__struct_fields__:
            value, returned = getattr(call, name), getattr(back, name)
            if not _same(value, returned):
                raise EncodeError(
                    self.task,
                    name,
                    f"{_brief(value)} would arrive as {_brief(returned)}; annotate the parameter "
                    "with the type of what you pass, or pass what the annotation says",
                )

    def _explain(self, call: msgspec.Struct, problem: BaseException) -> Exception:
        """Name the argument behind a failed encoding."""
        if isinstance(problem, PayloadTooLarge):
            return problem
        path = _PATH.search(str(problem))
        if isinstance(problem, msgspec.ValidationError) and path:
            name = path.group(1)
            told = _say(problem).removesuffix(f" - at `$.{name}`")
            return EncodeError(self.task, name or None, told)
        for name in call.__struct_fields__:
            try:
                # In brackets, for the payload around it is a level too.
                self._check_shape(b"[%b]" % self._encode(getattr(call, name)))
            except _UNFIT as own:
                return EncodeError(self.task, name, _say(own))
        return EncodeError(self.task, None, _say(problem))


# Everything msgspec, the hooks and odd values raise; UnicodeError is a ValueError.
_UNFIT = (
    msgspec.MsgspecError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    PayloadTooLarge,
)


def _bound(
    parameters: list[inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by parameter; the struct refuses what is missing.

    `*args` and `**kwargs` become one list and one object. Not by `inspect.Signature.bind`:
    that of 3.13 takes some calls that the function itself refuses, and earlier ones refuse
    some that it takes.
    """
    kinds = {parameter.kind: parameter.name for parameter in parameters}
    rest, others = kinds.get(_VAR_POSITIONAL), kinds.get(_VAR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in _POSITIONAL]
    bound: dict[str, Any] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional):
        if rest is None:
            raise TypeError(f"Takes {len(positional)} arguments by position, not {len(args)}")
        bound[rest] = args[len(positional) :]
    by_name = {p.name for p in parameters if p.kind in _PLAIN}
    for name, value in kwargs.items():
        if name in by_name:
            if name in bound:
                raise TypeError(f"Argument {name!r} given by name and position")
            bound[name] = value
        elif others is not None:
            bound.setdefault(others, {})[name] = value
        elif name in positional:
            raise TypeError(f"Argument {name!r} is taken by position only")
        else:
            raise TypeError(f"Unexpected keyword argument {name!r}")
    return bound


def _typed(task: str, function: Callable[..., Any]) -> tuple[list[inspect.Parameter], Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as problem:
        raise ConfigError(
            f"task {task!r} has an annotation that cannot be resolved: {problem}; import the type "
            "at run time, not only under TYPE_CHECKING"
        ) from None
    except Exception as problem:  # noqa: BLE001 (an annotation is code, and may raise anything)
        raise ConfigError(
            f"task {task!r} has an annotation that cannot be resolved: {problem}"
        ) from None
    signature = inspect.signature(function)
    parameters = [
        p.replace(annotation=_open(hints.get(p.name, Any))) for p in signature.parameters.values()
    ]
    return parameters, _open(hints.get("return", Any))


def _open(annotation: Any) -> Any:  # noqa: ANN401 (any annotation)
    """Treat `object` as what it says: anything."""
    return Any if annotation is object else annotation


def _struct_of(task: str, parameters: list[inspect.Parameter]) -> type[msgspec.Struct]:
    """Build the struct of a signature: keyword-only parameters in a base of their own."""
    named = {True: [], False: []}  # type: dict[bool, list[Any]]
    for parameter in parameters:
        if parameter.name.startswith("__"):
            raise ConfigError(
                f"task {task!r}: the parameter {parameter.name!r} cannot begin with two underscores"
            )
        named[parameter.kind in _POSITIONAL].append(_field(parameter))
    name = re.sub(r"\W", "_", task)
    base = msgspec.defstruct(name, named[False], kw_only=True)
    return msgspec.defstruct(name, named[True], bases=(base,), forbid_unknown_fields=True)


def _field(parameter: inspect.Parameter) -> Any:  # noqa: ANN401 (defstruct's own mixed tuples)
    if parameter.kind is _VAR_POSITIONAL:
        return (parameter.name, list[parameter.annotation], msgspec.UNSET)  # type: ignore[name-defined]
    if parameter.kind is _VAR_KEYWORD:
        return (parameter.name, dict[str, parameter.annotation], msgspec.UNSET)  # type: ignore[name-defined]
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, parameter.annotation)
    return (parameter.name, parameter.annotation, msgspec.UNSET)


def _holds_raw(struct: type[msgspec.Struct]) -> bool:
    """Say whether a call may hold JSON that nobody decodes before the handler does."""
    pending: list[object] = [msgspec.inspect.type_info(struct)]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, msgspec.inspect.RawType):
            return True
        if isinstance(part, list | tuple):
            pending.extend(part)
        elif isinstance(part, msgspec.Struct) and id(part) not in seen:
            seen.add(id(part))
            pending.extend(getattr(part, name) for name in part.__struct_fields__)
    return False


def _encode_hook(value: Any) -> object:  # noqa: ANN401 (whatever the user passes)
    if hasattr(type(value), "model_dump_json"):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    if value is None or isinstance(value, bool | tuple):
        raise TypeError(f"a dict key cannot be {brief(value)}; use text as a key")
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"a value of type {kind} has no JSON form; pass plain data (JSON types, datetime, UUID, "
        "Decimal, Enum, bytes, a dataclass, a msgspec struct or a pydantic model), or its id"
    )


def _decode_hook(kind: Any, value: object) -> object:  # noqa: ANN401 (whatever is annotated)
    if hasattr(kind, "model_validate"):
        # As JSON again: strict models take texts for dates and ids only there.
        return kind.model_validate_json(msgspec.json.encode(value))
    raise TypeError(
        f"a {getattr(kind, '__qualname__', kind)} cannot be built from JSON; annotate with a "
        "dataclass, a msgspec struct or a pydantic model"
    )


def too_deep(payload: bytes) -> bool:
    """Say whether JSON is nested deeper than a payload may be."""
    if payload.count(b"[") + payload.count(b"{") <= DEPTH_LIMIT:
        return False
    depth = 0
    for byte in _STRINGS.sub(b"", payload):
        if byte in b"[{":
            depth += 1
            if depth > DEPTH_LIMIT:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def _too_many_keys(payload: bytes) -> bool:
    if len(payload) <= KEY_LIMIT * _LEAST_KEY or payload.count(b":") <= KEY_LIMIT:
        return False
    return _STRINGS.sub(b"", payload).count(b":") > KEY_LIMIT


class KeysRefused(ValueError):
    """JSON has a key twice, or too many of them."""


_TOO_MANY_KEYS = (
    f"it has more than {KEY_LIMIT:,} keys; put the data where both sides can reach it "
    "(a file, a row, a bucket) and pass its name"
)


def check_keys(text: str) -> None:
    """Raise if an object of this JSON has a key twice, or if there are too many.

    Decoders take the last of two and say nothing, so what a person reads first is not what runs.
    """
    count = 0

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal count
        count += len(pairs)
        if count > KEY_LIMIT:
            raise KeysRefused(_TOO_MANY_KEYS)
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise KeysRefused(f"the key {brief(twice)} is there twice; keep one of them")

    # Numbers stay texts: nothing is made of them here, however long they are.
    with suppress(json.JSONDecodeError):  # Whoever decodes it says what is wrong.
        json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str, parse_constant=str)


_NON_FINITE = "NaN and infinity have no JSON form; pass None or a string"


def _plain_hook(value: Any) -> object:  # noqa: ANN401 (only models come here)
    return value.model_dump(round_trip=True)


def _has_non_finite(value: object) -> bool:
    pending: list[object] = [msgspec.to_builtins(value, enc_hook=_plain_hook)]
    while pending:
        part = pending.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return True
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
    return False


def _same(value: Any, returned: Any) -> bool:  # noqa: ANN401 (any two values)
    """Say whether a value came back as it was, tuples as lists, which JSON users expect."""
    if value == returned:
        return True
    if isinstance(value, list | tuple) and isinstance(returned, list | tuple):
        return len(value) == len(returned) and all(map(_same, value, returned))
    if isinstance(value, dict) and isinstance(returned, dict):
        return value.keys() == returned.keys() and all(_same(value[k], returned[k]) for k in value)
    # Objects that only equal themselves: their fields were checked when they were decoded.
    return type(value) is type(returned) and type(value).__eq__ is _IDENTITY


def _say(problem: BaseException) -> str:
    if isinstance(problem, RecursionError):
        return f"nested deeper than {DEPTH_LIMIT} levels; flatten it"
    if isinstance(problem, UnicodeError):
        return "holds characters that are no valid Unicode (lone surrogates)"
    if "integer string conversion" in str(problem):
        return "holds a whole number of thousands of digits; pass it as text"
    return _lower(str(problem).removeprefix("JSON is malformed: "))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
