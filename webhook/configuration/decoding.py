"""Strict decoding of plain data into msgspec structs, with the path of every error.

msgspec itself stops at the first error. This walks structs, lists and maps, and lets msgspec convert the leaves. Messages are
those of Kubernetes' field errors where it has one.
"""

import types
from collections.abc import Mapping
from datetime import date, datetime
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from policies.pods.field_paths import Parts, field_path

T = TypeVar("T")

_TYPE_NAMES: dict[type, str] = {
    dict: "a map",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
_TIME_TEXTS = {
    datetime: "a time with its zone, such as 2027-01-31T18:00:00Z",
    date: "a date, such as 2027-01-31",
}
REQUIRED = "Required value"


class Problem(msgspec.Struct, frozen=True):
    parts: Parts
    message: str

    @property
    def path(self) -> str:
        return field_path(self.parts)


def decode(kind: type[T], data: Any, at: Parts, problems: list[Problem], *, strict: bool = True) -> T | None:
    """Return `data` as a `kind`, or None after appending to `problems`. Unknown fields are problems if `strict`."""
    decoder = _Decoder(strict)
    value = decoder.value(kind, data, at)
    problems.extend(decoder.problems)
    return None if decoder.problems else value


def decode_valid(kind: type[T], data: Any, at: Parts, problems: list[Problem]) -> T | None:
    """Return what of `data` is valid as a `kind`; None if that lacks a required field. The rest is appended to `problems`."""
    decoder = _Decoder(strict=True)
    value = decoder.value(kind, data, at)
    problems.extend(decoder.problems)
    return None if value is _INVALID else value


_INVALID: Any = object()
"""Stands for a value that cannot be read."""


class _Decoder:
    """One walk over plain data; `problems` are in the order of the walk."""

    def __init__(self, strict: bool) -> None:
        self.problems: list[Problem] = []
        self._strict = strict

    def value(self, kind: Any, data: Any, at: Parts) -> Any:
        options = [option for option in _options(kind) if option not in {type(None), msgspec.UnsetType}]
        if data is None and type(None) in _options(kind):
            return None
        # Of several, a map or a list is read by the one that is of its kind.
        fitting = [
            each for each in options if isinstance(data, dict | list) and _plain_type(each) is type(data)
        ]
        chosen = fitting or options
        return (
            self._decode_one(chosen[0], data, at) if len(chosen) == 1 else self._decode_leaf(kind, data, at)
        )

    def _decode_one(self, kind: Any, data: Any, at: Parts) -> Any:
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        origin, arguments = get_origin(plain), get_args(plain)
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return self._decode_struct(plain, data, at)
        if origin is tuple and arguments[-1] is Ellipsis:
            items = self._of_type(list, data, at)
            if items is None:
                return _INVALID
            read = (self.value(arguments[0], item, (*at, index)) for index, item in enumerate(items))
            return tuple(item for item in read if item is not _INVALID)
        if origin in {dict, Mapping}:
            members, value_type = self._of_type(dict, data, at), arguments[1]
            if members is None:
                return _INVALID
            values = {
                self._key(key, at): self.value(value_type, member, (*at, str(key)))
                for key, member in members.items()
            }
            return {key: value for key, value in values.items() if value is not _INVALID}
        return data if plain is msgspec.Raw else self._decode_leaf(kind, data, at)

    def _of_type(self, kind: type[T], data: Any, at: Parts) -> T | None:
        if isinstance(data, kind):
            return data
        self._problem(at, f"must be {_TYPE_NAMES[kind]}, not {_describe(data)}")
        return None

    def _key(self, key: Any, at: Parts) -> str:
        if not isinstance(key, str):
            self._problem((*at, str(key)), f"YAML reads this key as {_describe(key)}; quote it")
        return str(key)

    def _decode_struct(self, kind: type[msgspec.Struct], data: Any, at: Parts) -> Any:
        members, is_complete = self._of_type(dict, data, at), True
        if members is None:
            return _INVALID
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for key in members if self._strict else ():
            if key not in fields:
                self._problem((*at, str(key)), f"unknown field{suggestion(str(key), list(fields))}")
        values = {}
        for name, field in fields.items():
            value = self.value(field.type, members[name], (*at, name)) if name in members else _INVALID
            if value is not _INVALID:
                values[field.name] = value
            elif field.required:
                is_complete = False
                if name not in members:
                    self._problem((*at, name), REQUIRED)
        return kind(**values) if is_complete else _INVALID

    def _decode_leaf(self, kind: Any, data: Any, at: Parts) -> Any:
        try:
            return msgspec.convert(data, kind)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            self._problem(at, _message(kind, data, str(error)))
            return _INVALID

    def _problem(self, at: Parts, message: str) -> None:
        self.problems.append(Problem(at, message))


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)


def _plain_type(kind: Any) -> Any:
    """Return the type of the plain data that is read as this type."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _plain_type(get_args(kind)[0])
    if origin in {dict, Mapping} or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return dict
    return list if origin is tuple else kind


def _message(kind: Any, data: Any, error: str) -> str:
    options = [option for option in _options(kind) if option is not type(None)]
    enums = [option for option in options if isinstance(option, type) and issubclass(option, Enum)]
    choices = [member.value for enum in enums for member in enum]
    if (
        isinstance(data, bool)
        and bool not in options
        and (choices or (str in options and int not in options))
    ):
        return _boolean_message(choices)
    if choices:
        return unsupported(str(data), choices)
    if isinstance(data, int | float) and not isinstance(data, bool) and str in options:
        what = "a whole number or text" if int in options else "text"
        return f"must be {what}; YAML reads {data} as a number: quote it"
    if moment := next((_TIME_TEXTS[option] for option in options if option in _TIME_TEXTS), ""):
        return f"must be {moment}"
    plain = [_plain_type(option) for option in options]
    if all(each in _TYPE_NAMES for each in plain) and (type(data) not in plain):
        return f"must be {' or '.join(_TYPE_NAMES[each] for each in plain)}, not {_describe(data)}"
    return error[:1].lower() + error[1:]


def _boolean_message(choices: list[str]) -> str:
    hint = "YAML reads off, no and n as false, and on, yes and y as true"
    if not choices:
        return f"must be text; {hint}: quote it"
    remedy = ": write disabled" if "disabled" in choices else ""
    return f"must be {_one_of(choices)}; {hint}{remedy}"


def unsupported(value: str, supported: list[str]) -> str:
    close = get_close_matches(value, supported, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f'Unsupported value: "{value[:63]}": must be {_one_of(supported)}{hint}'


def suggestion(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f": must be {_one_of(known)}"


def _one_of(values: list[str]) -> str:
    return f"one of {', '.join(values)}" if len(values) > 1 else values[0]


def _describe(data: Any) -> str:
    if data is None:
        return "nothing"
    # Show the value: a number may have been written as text.
    shown = f' "{data[:40]}"' if isinstance(data, str) else f" {data}" if type(data) in {int, float} else ""
    return _TYPE_NAMES.get(type(data), type(data).__name__) + shown
