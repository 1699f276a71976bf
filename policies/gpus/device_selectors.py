"""CEL selectors of DRA devices: which kinds of devices the scheduler may select by them.

cel-cpp evaluates them, by its own binding (`cel-expr-python`). Kubernetes evaluates with cel-go, in the environment of
`k8s.io/dynamic-resource-allocation/cel` v0.37.2. The result is an upper bound: a kind is left out only if cel-go selects none of
its devices. Tenants write the selectors, so this must hold for selectors that are made to tell the two libraries apart:

- An expression is evaluated only if it is of a form in which both agree: few functions, no floating-point numbers, no maps, no
  bytes, no comments. Other expressions, and costly ones, allow every kind.
- An error allows the kind, because cel-go may have a value. It does not if an attribute is surely missing.
- An attribute in `DeviceKind.unknown` is left out, so that reading it is an error, which `&&` and `||` may make irrelevant.

Quantities and versions are bytes in cel-cpp. An expression cannot tell, because it has neither bytes nor `type()`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.gpus.device_kinds import DeviceAttribute, DeviceKind, DeviceKinds
from policies.pods.quantity import QuantityText, parse_quantity

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_LENGTH = 1024
"""Characters of an expression that is evaluated. The API server accepts 10,240; the longest of 60 real ones has some 300."""

MAX_LOOP_LENGTH = 256
"""Characters of an expression with a macro. Its cost grows with the square of the length."""

_MACROS = frozenset({"all", "bind", "exists", "exists_one", "filter", "map"})
_MAY_FAIL = frozenset({"matches", "quantity", "semver"})
"""Functions that may be an error here and have a value in Kubernetes: for larger numbers, or by another syntax of patterns."""
_FUNCTIONS = _MACROS | _MAY_FAIL
_FUNCTIONS |= {"compareTo", "contains", "endsWith", "has", "hasValue", "in", "isGreaterThan", "isLessThan"}
_FUNCTIONS |= {"lowerAscii", "orValue", "size", "startsWith", "upperAscii"}
_TEXT = r"""[rR]?"[^"\\\n]*"|[rR]?'[^'\\\n]*'"""
_READ = (
    rf"device\.(?P<field>attributes|capacity)\[(?P<domain>{_TEXT})\]"
    rf"(?:\.(?P<optional>\??)(?P<id>\w+)|\[(?P<quoted>{_TEXT})\])(?!\w|\s*\()"
)
"""The read of one attribute or capacity by its name."""
_TOKEN = re.compile(
    rf"""(?<![\w.]){_READ}|\b[rR](?:"[^"\n]*"|'[^'\n]*')|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
_CALL = re.compile(r"(\w+)\s*\(")
_REFUSED = re.compile(
    r"""//|\d[uU]\b|\{|'|(?<!")"(?!")|\w""|""\s*""|(?<![\w.])\d+[.eE]|(?<![\w\])])\s*\.\d"""
)
"""Comments, unsigned and floating-point numbers, maps, unfinished strings and bytes, in an expression with empty strings."""
_COSTLY_PATTERN = re.compile(r"\{|\\[pPuUxX0-7]")
"""Repetitions, Unicode classes, and characters that may be one of these."""
_OTHER_USE = re.compile(r"\bdevice\b(?!\.(?:driver|allowMultipleAllocations)\b)")

_VERSION = re.compile(
    r"(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)


class _Selector(NamedTuple):
    """A compiled expression.

    reads: the qualified names of the attributes and capacities that it reads. None if it uses `device` in another way.
    is_guarded: it may test whether an attribute exists.
    may_recover: it may have a value in Kubernetes although the read of a missing attribute is an error here.
    """

    program: "cel.Expression"
    reads: frozenset[str] | None
    is_guarded: bool
    may_recover: bool


def possible_kinds(expressions: Iterable[str], kinds: DeviceKinds) -> frozenset[int]:
    """Return the indexes of the kinds of which a device may satisfy all expressions."""
    possible = frozenset(range(len(kinds.kinds)))
    for each in dict.fromkeys(expressions):
        if not possible:
            break
        possible &= _evaluated(each, kinds)
    return possible


def not_evaluated(expressions: Iterable[str]) -> tuple[str, ...]:
    """Return the expressions that allow every kind, because they are not evaluated."""
    return tuple(each for each in dict.fromkeys(expressions) if _compiled(each) is None)


def _evaluated(expression: str, kinds: DeviceKinds) -> frozenset[int]:
    # Tenants choose the expressions, so the cache is bounded. It goes with its kinds.
    cached = kinds.__dict__.get("evaluated")
    if cached is None:
        devices = [_device(kind) for kind in kinds.kinds]

        @lru_cache(maxsize=1024)
        def evaluate(expression: str) -> frozenset[int]:
            selector = _compiled(expression)
            return frozenset(
                index
                for index, kind in enumerate(kinds.kinds)
                if selector is None or _may_select(selector, kind, devices[index])
            )

        cached = kinds.__dict__["evaluated"] = evaluate
    possible: frozenset[int] = cached(expression)
    return possible


def _may_select(selector: _Selector, kind: DeviceKind, device: dict[str, Any] | None) -> bool:
    reads = selector.reads
    unknown = bool(kind.unknown) if reads is None else not reads.isdisjoint(kind.unknown)
    if device is None or (unknown and (reads is None or selector.is_guarded)):
        return True
    if reads is not None:
        # In Kubernetes, `device.attributes` has an empty map for every other domain. `in` and size() do not tell.
        domains: dict[str, dict[str, Any]] = {name.partition("/")[0]: {} for name in reads}
        device = {**device, **{field: {**domains, **device[field]} for field in ("attributes", "capacity")}}
    try:
        value = selector.program.eval(data={"device": device}).value()
    except (RuntimeError, TypeError):
        return True
    if isinstance(value, bool):
        return value
    is_missing = str(value).startswith("NOT_FOUND: Key not found in map")
    return reads is None or unknown or selector.may_recover or not is_missing


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> _Selector | None:
    """Return None if the expression is not evaluated."""
    reads: set[str] = set()

    def emptied(token: re.Match[str]) -> str:
        if token["field"] is None:
            return '""'
        domain, quoted = (text and text.strip("rR")[1:-1] for text in (token["domain"], token["quoted"]))
        reads.add(f"{domain}/{token['id'] or quoted}")
        return f"device.driver{token['optional'] or ''}"

    rest = _TOKEN.sub(emptied, expression)
    calls = _CALL.findall(rest)
    macros = sum(each in _MACROS for each in calls)
    is_guarded = "has" in calls or "?" in rest
    is_other = _OTHER_USE.search(rest) is not None
    if (
        len(expression) > (MAX_LOOP_LENGTH if macros else MAX_LENGTH)
        or macros > 1
        or not _FUNCTIONS.issuperset(calls)
        or _REFUSED.search(rest)
        or ("matches" in calls and _COSTLY_PATTERN.search(expression))
        or (is_guarded and is_other)  # they find every domain in `device.attributes`
    ):
        return None
    try:
        program = _environment().compile(expression)
    except (RuntimeError, TypeError, UnicodeError):
        return None
    may_recover = not _MAY_FAIL.isdisjoint(calls) and ("?" in rest or "||" in rest or macros > 0)
    return _Selector(program, None if is_other else frozenset(reads), is_guarded, may_recover)


def _device(kind: DeviceKind) -> dict[str, Any] | None:
    """Return the variable `device` for a kind. None if an amount or version cannot be read."""
    try:
        attributes = {name: _value(each) for name, each in kind.attributes.items()}
        capacity = {name: _quantity(each.value) for name, each in kind.capacity.items()}
    except ValueError:
        return None
    return {
        "driver": kind.driver,
        "allowMultipleAllocations": kind.is_shared,
        "attributes": _by_domain(attributes),
        "capacity": _by_domain(capacity),
    }


def _by_domain(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    by_domain: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, _, identifier = name.partition("/")
        by_domain.setdefault(domain, {})[identifier] = value
    return by_domain


def _value(attribute: DeviceAttribute) -> bool | int | str | bytes:
    values = (attribute.boolean, attribute.integer, attribute.string)
    stated = next((each for each in values if each is not None), None)
    return _version(attribute.version or "") if stated is None else stated


# ---- quantities and versions, as bytes that start with q and v


def _quantity(amount: QuantityText) -> bytes:
    """Return the amount in nano units. Raises QuantityError."""
    return b"q%d" % parse_quantity(amount).nano


def _version(text: str) -> bytes:
    """Return the version without its build. Raises ValueError."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f'not a semantic version: "{text[:40]}"')
    return f"v{match[1]}.{match[2]}.{match[3]}-{match[4] or ''}".encode()


def _compare(one: bytes, other: bytes) -> int:
    """Return -1, 0 or 1. Raises ValueError if they are not both quantities or both versions."""
    if one[:1] != other[:1]:
        raise ValueError("no such overload")
    first, second = (_order(each) for each in (one, other))
    return (first > second) - (first < second)


def _order(value: bytes) -> tuple[Any, ...]:
    """Return a sort key. A release follows its pre-releases; their numbers precede their words (semver.org, 11)."""
    if value[:1] == b"q":
        return (int(value[1:]),)
    numbers, _, suffix = value[1:].decode().partition("-")
    words = [(0, int(each), "") if each.isdecimal() else (1, 0, each) for each in suffix.split(".")]
    return (*map(int, numbers.split(".")), not suffix, words if suffix else [])


@lru_cache(maxsize=1)
def _environment() -> "cel.Env":
    # Only processes that know kinds of devices load the library.
    from cel_expr_python import cel  # noqa: PLC0415
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings  # noqa: PLC0415

    types = cel.Type

    def function(
        name: str, result: cel.Type, of: Sequence[cel.Type], call: Callable[..., Any], *, member: bool = True
    ) -> cel.FunctionDecl:
        overload = cel.Overload(f"kubernetes_{name}", result, of, is_member=member, impl=call)
        return cel.FunctionDecl(name, [overload])

    two = [types.BYTES, types.BYTES]
    return cel.NewEnv(
        variables={"device": types.DYN},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[
            function("quantity", types.BYTES, [types.STRING], _quantity, member=False),
            function("semver", types.BYTES, [types.STRING], _version, member=False),
            function("isGreaterThan", types.BOOL, two, lambda one, other: _compare(one, other) > 0),
            function("isLessThan", types.BOOL, two, lambda one, other: _compare(one, other) < 0),
            function("compareTo", types.INT, two, _compare),
        ],
    )
