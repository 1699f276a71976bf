"""CEL selectors of DRA devices: which types of devices the scheduler may select by them.

cel-cpp evaluates them, by its own binding (`cel-expr-python`). Kubernetes evaluates with cel-go, in the environment of
`k8s.io/dynamic-resource-allocation/cel` v0.37.2. The result is an upper bound: a type is left out only if cel-go selects none of
its devices. Tenants write the selectors, so this must hold for selectors that are made to tell the two libraries apart:

- An expression is evaluated only if it is of a form in which both agree: few functions, no floating-point numbers, no maps, no
  bytes, no comments. Other expressions, and costly ones, allow every type.
- An error allows the type, because cel-go may have a value. It does not if a missing attribute is read in a chain of `&&`, where
  no other value makes up for the error.
- An attribute in `DeviceType.unknown_names` is left out, so that reading it is an error, which `&&` and `||` may make irrelevant.

Quantities and versions are bytes in cel-cpp. An expression cannot tell, because it has neither bytes nor `type()`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.gpus.device_types import DeviceAttribute, DeviceType, DeviceTypes
from policies.pods.quantity import QuantityText, parse_quantity

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_LENGTH = 1024
"""Characters of an expression that is evaluated. The API server accepts 10,240; the longest of 60 real ones has some 300."""

MAX_LOOP_LENGTH = 256
"""Characters of an expression with a macro. Its cost grows with the square of the length."""

MAX_CACHED = 256
"""Compiled expressions that are cached, and evaluated for each catalogue. A long one takes some 70 KB of memory."""

MAX_SELECTOR_TEXT, MAX_EVALUATIONS = 1024, 1600
"""Characters of the different selectors of one review, and their number times the types of devices."""

_MACROS = frozenset({"all", "bind", "exists", "exists_one", "filter", "map"})
_FUNCTIONS = _MACROS | {"compareTo", "contains", "endsWith", "has", "hasValue", "in", "isGreaterThan"}
_FUNCTIONS |= {"isLessThan", "lowerAscii", "matches", "orValue", "quantity", "semver", "size", "startsWith"}
_FUNCTIONS |= {"upperAscii"}
_STRING = r"""[rR]?"[^"\\\n]*"|[rR]?'[^'\\\n]*'"""
_ATTRIBUTE_READ = (
    rf"device\.(?P<field>attributes|capacity)\[(?P<domain>{_STRING})\]"
    rf"(?:\.(?P<optional>\??)(?P<id>\w+)|\[(?P<quoted>{_STRING})\])(?!\w|\s*\()"
)
"""The read of one attribute or capacity by its name."""
_ATTRIBUTE_TEST = (
    rf"(?P<tested>{_STRING})\s+in\s+device\.(?:attributes|capacity)\[(?P<within>{_STRING})\](?!\s*[.\[])"
)
"""The test whether a device has one attribute or capacity."""
_DOMAIN_TEST = rf"(?P<domain_tested>{_STRING})\s+in\s+device\.(?P<of>attributes|capacity)\b(?!\s*[.\[])"
"""The test whether a device has attributes or capacities of a domain."""
_TOKEN = re.compile(
    rf"""{_ATTRIBUTE_TEST}|{_DOMAIN_TEST}|(?<![\w.]){_ATTRIBUTE_READ}|\b[rR](?:"[^"\n]*"|'[^'\n]*')|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
_CALL = re.compile(r"\b(\w+)\s*\(")
_UNSUPPORTED = re.compile(
    r"""//|\d[uU]\b|\{|'|(?<!")"(?!")|\w""|""\s*""|(?<![\w.])\d+[.eE]|(?<![\w\])])\s*\.\d"""
)
"""Comments, unsigned and floating-point numbers, maps, unfinished strings and bytes, in an expression with empty strings."""
_MATCHES = re.compile(r"\bmatches\s*\(")
_SHORT_PATTERN = re.compile(r"""\bmatches\s*\(\s*(?:"[^"\\\n{]{0,64}"|'[^'\\\n{]{0,64}')\s*\)""")
"""A call with a pattern that costs little: each evaluation compiles it. It has neither repetitions nor escapes."""
_MAX_MATCHES = 4
_OTHER_USE_OF_DEVICE = re.compile(r"\bdevice\b(?!\.(?:driver|allowMultipleAllocations)\b)")

_VERSION = re.compile(
    r"(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)


class _Selector(NamedTuple):
    """A compiled expression.

    reads: the domains and names of the attributes and capacities that it reads. None if it uses `device` in another way.
    domains: those whose presence it tests, each with `attributes` or `capacity`.
    is_guarded: it may test whether an attribute exists.
    may_recover: it may be true although the read of a missing attribute is an error.
    """

    program: "cel.Expression"
    reads: frozenset[tuple[str, str]] | None
    domains: frozenset[tuple[str, str]]
    is_guarded: bool
    may_recover: bool


def possible_types(expressions: Iterable[str], types: DeviceTypes) -> frozenset[int]:
    """Return the indexes of the types whose devices may satisfy all expressions."""
    possible = frozenset(range(len(types.types)))
    for expression in dict.fromkeys(expressions):
        if not possible:
            break
        possible &= _matching_types(expression, types)
    return possible


def unevaluated(expressions: Iterable[str]) -> tuple[str, ...]:
    """Return the expressions that allow every type, because they are not evaluated."""
    return tuple(expression for expression in dict.fromkeys(expressions) if _compiled(expression) is None)


def _matching_types(expression: str, types: DeviceTypes) -> frozenset[int]:
    # Tenants choose the expressions, so the cache is bounded. It goes with its types.
    cached = types.__dict__.get("evaluated")
    if cached is None:
        devices = [_device_variable(device_type) for device_type in types.types]

        @lru_cache(maxsize=MAX_CACHED)
        def evaluate(expression: str) -> frozenset[int]:
            selector = _compiled(expression)
            return frozenset(
                index
                for index, device_type in enumerate(types.types)
                if selector is None or _may_select(selector, device_type, devices[index])
            )

        cached = types.__dict__["evaluated"] = evaluate
    possible: frozenset[int] = cached(expression)
    return possible


def _may_select(selector: _Selector, device_type: DeviceType, device: dict[str, Any] | None) -> bool:
    reads = selector.reads
    names = None if reads is None else {f"{domain}/{name}" for domain, name in reads}
    unknown = (
        bool(device_type.unknown_names) if names is None else not names.isdisjoint(device_type.unknown_names)
    )
    unknown |= device is not None and any(
        domain not in device[f"{of}_domains"]
        and any(unknown_name.startswith(f"{domain}/") for unknown_name in device_type.unknown_names)
        for of, domain in selector.domains
    )
    if device is None or (unknown and (reads is None or selector.is_guarded)):
        return True
    if reads is not None:
        # In Kubernetes, `device.attributes` has an empty map for every other domain. `in` and size() do not tell.
        domains: dict[str, dict[str, Any]] = {domain: {} for domain, _ in reads}
        device = {**device, **{field: {**domains, **device[field]} for field in ("attributes", "capacity")}}
    try:
        value = selector.program.eval(data={"device": device}).value()
    except (RuntimeError, TypeError):
        return True
    if isinstance(value, bool):
        return value
    is_missing = str(value).startswith("NOT_FOUND: Key not found in map")
    return reads is None or unknown or selector.may_recover or not is_missing


@lru_cache(maxsize=MAX_CACHED)
def _compiled(expression: str) -> _Selector | None:
    """Return None if the expression is not evaluated."""
    if len(expression) > MAX_LENGTH:
        return None
    reads = set[tuple[str, str]]()
    tests = set[tuple[str, str]]()
    domains = set[tuple[str, str]]()

    def replacement(token: re.Match[str]) -> str:
        if token["tested"] is not None:
            tests.add((_unquoted(token["within"]), _unquoted(token["tested"])))
            return '"" in device.driver'
        if token["domain_tested"] is not None:
            domains.add((token["of"], _unquoted(token["domain_tested"])))
            return '"" in device.driver'
        if token["field"] is None:
            return '""'
        reads.add((_unquoted(token["domain"]), token["id"] or _unquoted(token["quoted"])))
        return f"device.driver{token['optional'] or ''}"

    skeleton = _TOKEN.sub(replacement, expression)
    calls = _CALL.findall(skeleton)
    macros = sum(call in _MACROS for call in calls)
    is_guarded = "has" in calls or "?" in skeleton or bool(tests or domains)
    uses_device_otherwise = _OTHER_USE_OF_DEVICE.search(skeleton) is not None
    if (
        (macros and len(expression) > MAX_LOOP_LENGTH)
        or macros > 1
        or not _FUNCTIONS.issuperset(calls)
        or _UNSUPPORTED.search(skeleton)
        or (_MATCHES.search(skeleton) and (macros or not _has_plain_patterns(expression)))
        or (is_guarded and uses_device_otherwise)  # they find every domain in `device.attributes`
    ):
        return None
    try:
        program = _environment().compile(_TOKEN.sub(_with_domain_lists, expression))
    except (RuntimeError, TypeError, UnicodeError):
        return None
    may_recover = "?" in skeleton or "||" in skeleton or macros > 0 or _has_inner_and(skeleton)
    names = None if uses_device_otherwise else frozenset(reads | tests)
    return _Selector(program, names, frozenset(domains), is_guarded, may_recover)


def _with_domain_lists(token: re.Match[str]) -> str:
    """Return the token as it is evaluated: `device.attributes` has more domains than the device, whose reads are errors."""
    domain = token["domain_tested"]
    return token[0] if domain is None else f"{domain} in device.{token['of']}_domains"


def _has_plain_patterns(expression: str) -> bool:
    """Whether all patterns are short, and RE2 and Go fold the case of all letters alike."""
    if not expression.isascii() or "\\" in expression:
        return False
    patterns = len(_SHORT_PATTERN.findall(expression))
    return patterns <= _MAX_MATCHES and patterns == len(_MATCHES.findall(expression))


def _has_inner_and(text: str) -> bool:
    """Whether an `&&` is in parentheses, brackets or arguments, where its value may be turned around or compared."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth and text.startswith("&&", index):
            return True
    return False


def _unquoted(text: str) -> str:
    return text.lstrip("rR")[1:-1]


def _device_variable(device_type: DeviceType) -> dict[str, Any] | None:
    """Return the variable `device` for a type. None if an amount or version cannot be read."""
    try:
        attributes = {name: _attribute_value(attribute) for name, attribute in device_type.attributes.items()}
        capacity = {name: _encoded_quantity(each.value) for name, each in device_type.capacity.items()}
    except ValueError:
        return None
    return {
        "driver": device_type.driver,
        "allowMultipleAllocations": device_type.is_shared,
        "attributes": _by_domain(attributes),
        "attributes_domains": [*_by_domain(attributes)],
        "capacity": _by_domain(capacity),
        "capacity_domains": [*_by_domain(capacity)],
    }


def _by_domain(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    by_domain: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, _, identifier = name.partition("/")
        by_domain.setdefault(domain, {})[identifier] = value
    return by_domain


def _attribute_value(attribute: DeviceAttribute) -> bool | int | str | bytes:
    values = (attribute.boolean, attribute.integer, attribute.string)
    stated = next((value for value in values if value is not None), None)
    return _encoded_version(attribute.version or "") if stated is None else stated


# ---- quantities and versions, as bytes that start with q and v


def _encoded_quantity(amount: QuantityText) -> bytes:
    """Return the amount in nano units. Raises QuantityError."""
    return b"q%d" % parse_quantity(amount).nano


def _encoded_version(text: str) -> bytes:
    """Return the version without its build. Raises ValueError."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError  # not a semantic version
    return f"v{match[1]}.{match[2]}.{match[3]}-{match[4] or ''}".encode()


def _compare(one: bytes, other: bytes) -> int:
    """Return -1, 0 or 1. Raises ValueError if they are not both quantities or both versions."""
    if one[:1] != other[:1]:
        raise ValueError  # CEL has no such overload
    first, second = (_sort_key(version) for version in (one, other))
    return (first > second) - (first < second)


def _sort_key(value: bytes) -> tuple[Any, ...]:
    """Return a sort key. A release follows its pre-releases; their numbers precede their words (semver.org, 11)."""
    if value[:1] == b"q":
        return (int(value[1:]),)
    numbers, _, suffix = value[1:].decode().partition("-")
    words = [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in suffix.split(".")]
    return (*map(int, numbers.split(".")), not suffix, words if suffix else [])


@lru_cache(maxsize=1)
def _environment() -> "cel.Env":
    # Only processes that know types of devices load the library.
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
            function("quantity", types.BYTES, [types.STRING], _encoded_quantity, member=False),
            function("semver", types.BYTES, [types.STRING], _encoded_version, member=False),
            function("isGreaterThan", types.BOOL, two, lambda one, other: _compare(one, other) > 0),
            function("isLessThan", types.BOOL, two, lambda one, other: _compare(one, other) < 0),
            function("compareTo", types.INT, two, _compare),
        ],
    )


class SelectorBounds:
    """The selectors that one review evaluates: tenants write them, and a pod may name hundreds of claims.

    The others are not evaluated: they leave every type of device possible.
    """

    def __init__(self, types: DeviceTypes) -> None:
        self._type_count = len(types.types)
        self._reserved = frozenset[str]()

    def add_selectors(self, expressions: Iterable[str]) -> bool:
        """Add the selectors of a claim to those of this review. Return False, and add none, if they would exceed the bounds."""
        every = self._reserved.union(expressions)
        if sum(map(len, every)) > MAX_SELECTOR_TEXT or len(every) * self._type_count > MAX_EVALUATIONS:
            return False
        self._reserved = every
        return True
