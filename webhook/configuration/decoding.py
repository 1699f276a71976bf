"""Turn plain data into msgspec structs, strictly, and tell every error at once with its path.

msgspec itself stops at the first error. This walks structs, lists and maps, and lets msgspec convert the leaves.
"""

import types
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from webhook.yaml_documents import Parts

T = TypeVar("T")
MISSING = msgspec.UNSET


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with a document: where (path as parts) and what."""

    parts: Parts
    message: str

    @property
    def path(self) -> str:
        return dotted(self.parts)


def dotted(parts: Parts) -> str:
    """Return parts as people write them: `spec.rules.gpu-class.allowed[0]`, `hard[nvidia.com/gpu]`."""
    text = ""
    for part in parts:
        if isinstance(part, int) or "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def parts_of(path: str) -> Parts:
    """Return the parts of a path in the form that `dotted` writes."""
    parts: list[str | int] = []
    for piece in path.replace("[", ".[").split("."):
        if piece.startswith("[") and piece.endswith("]"):
            inner = piece[1:-1]
            parts.append(int(inner) if inner.isdigit() else inner)
        elif piece:
            parts.append(piece)
    return tuple(parts)


def decode(kind: type[T], data: Any, at: Parts, problems: list[Problem]) -> T | None:
    """Return `data` as a `kind`; or None, and what is wrong is in `problems`."""
    before = len(problems)
    value = _decode(kind, data, at, problems)
    return None if len(problems) > before else value


def _decode(kind: Any, data: Any, at: Parts, problems: list[Problem]) -> Any:
    options = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    if data is None and type(None) in options:
        return None
    chosen = [option for option in options if option is not type(None)]
    if len(chosen) == 1:
        return _decode_one(chosen[0], data, at, problems)
    return _leaf(kind, data, at, problems)


def _decode_one(kind: Any, data: Any, at: Parts, problems: list[Problem]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, data, at, problems)
    if origin is tuple and arguments[-1] is Ellipsis:
        if not isinstance(data, list):
            problems.append(Problem(at, f"must be a list, not {_told(data)}"))
            return None
        return tuple(_decode(arguments[0], item, (*at, index), problems) for index, item in enumerate(data))
    if origin in {dict, Mapping}:
        if not isinstance(data, dict):
            problems.append(Problem(at, f"must be a map, not {_told(data)}"))
            return None
        return {_key(key, at, problems): _decode(arguments[1], item, (*at, str(key)), problems) for key, item in data.items()}
    return _leaf(kind, data, at, problems)


def _key(key: Any, at: Parts, problems: list[Problem]) -> str:
    if not isinstance(key, str):
        problems.append(Problem((*at, str(key)), f"YAML reads this key as {_told(key)}; quote it"))
    return str(key)


def _struct(kind: type[msgspec.Struct], data: Any, at: Parts, problems: list[Problem]) -> Any:
    if not isinstance(data, dict):
        problems.append(Problem(at, f"must be a map, not {_told(data)}"))
        return None
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in data:
        if key not in fields:
            problems.append(Problem((*at, str(key)), f"is not known here{nearest(str(key), list(fields))}"))
    values = {}
    before = len(problems)
    for name, field in fields.items():
        if name in data:
            values[field.name] = _decode(field.type, data[name], (*at, name), problems)
        elif field.required:
            problems.append(Problem((*at, name), "is required"))
    return kind(**values) if len(problems) == before else None


def _leaf(kind: Any, data: Any, at: Parts, problems: list[Problem]) -> Any:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        problems.append(Problem(at, _sentence(kind, data, str(error))))
        return None


def _sentence(kind: Any, data: Any, error: str) -> str:
    options = [option for option in (get_args(kind) or (kind,)) if option is not type(None)]
    choices = [member.value for option in options if isinstance(option, type) and issubclass(option, Enum) for member in option]
    if isinstance(data, bool) and bool not in options:
        hint = "YAML reads off, no and false as false, and on, yes and true as true"
        if "disabled" in choices:
            return f"must be one of {', '.join(choices)}; {hint}: write disabled to switch it off"
        if choices:
            return f"must be one of {', '.join(choices)}; {hint}"
        if str in options:
            return f"must be text; {hint}: quote it"
    if isinstance(data, int | float) and str in options and not choices:
        return f"must be text; YAML reads {data} as a number: quote it"
    if choices:
        return f'"{data}" is none of {", ".join(choices)}{nearest(str(data), choices)}'
    return error[:1].lower() + error[1:]


def nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _told(data: Any) -> str:
    names = {dict: "a map", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing" if data is None else names.get(type(data), type(data).__name__)
