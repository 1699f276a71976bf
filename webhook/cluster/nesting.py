"""JSON that is nested too deeply for a decoder: the API server accepts 10,000 levels (`sigs.k8s.io/json`), Python some 1,000.

A user who may create a ResourceClaimTemplate can store such JSON in the parameters of a driver. It must not make a whole list
unreadable, so a value deeper than DEEPEST is read as null. No field of an API is that deep.
"""

import re
from collections.abc import Callable
from typing import TypeVar

DEEPEST = 100

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], document: bytes) -> T:
    """Decode the JSON, without the values that are nested too deeply. Raises the errors of `decode`."""
    try:
        return decode(document)
    except RecursionError:
        return decode(shallow(document))


def shallow(document: bytes) -> bytes:
    """Return the JSON with null in place of each array and object inside DEEPEST others."""
    kept, depth, end = [], 0, 0
    for token in _TOKEN.finditer(document):
        if token[0] in {b"[", b"{"}:
            if depth == DEEPEST:
                kept += [document[end : token.start()], b"null"]
            depth += 1
        elif token[0] in {b"]", b"}"}:
            depth -= 1
            if depth == DEEPEST:
                end = token.end()
    return b"".join([*kept, document[end:]])
