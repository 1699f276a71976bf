"""JSON that is nested more deeply than Python's decoders go, as the API server stores it for anybody."""

import json

import msgspec

from tests.cases import cases
from webhook.cluster.api import MAX_DEPTH, decode_bounded, without_deep_values

LEVELS = 9_999
"""Of the 10,000 that the API server takes."""
ARRAYS = b"[" * LEVELS + b"]" * LEVELS
OBJECTS = b'{"a":' * LEVELS + b"1" + b"}" * LEVELS


@cases("deep", arrays=ARRAYS, objects=OBJECTS)
def test_what_is_nested_too_deeply_is_null_and_the_rest_is_read(deep: bytes) -> None:
    document = b'{"before":"]}\\"[{","deep":[%b,%b],"after":{"b":2}}' % (deep, deep)

    found = decode_bounded(msgspec.json.decode, document)

    assert (found["before"], found["after"]) == (']}"[{', {"b": 2})
    first, second = found["deep"]
    assert first == second
    for _ in range(MAX_DEPTH - 2):
        first = first[0] if isinstance(first, list) else first["a"]
    assert first is None


@cases(
    "document",
    flat=b'{"a":[1,{"b":"\\\\"}],"c":"[[[\\""}',
    as_deep_as_is_read=b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    brackets_in_a_text=json.dumps({"text": "[" * 5_000}).encode(),
)
def test_what_is_not_too_deep_stays_as_it_is(document: bytes) -> None:
    assert without_deep_values(document) == document
