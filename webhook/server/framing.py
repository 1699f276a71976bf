"""
Where a request ends, read from its head alone.

Only what needs no judgement is decided here: one plain Content-Length, or none. Whatever else a head
says about its body (chunked, repeated, signed, both at once) is left to gunicorn's parser, which refuses
what could be read in two ways; nothing that follows such a head on the same connection is ever taken for
a request.
"""

import dataclasses
import re
import sys

# gunicorn caps the request line at 4094 bytes and each field at 8190; kube-apiserver's heads are
# some 300 bytes.
HEAD_LIMIT = 32 * 1024

_END = b"\r\n\r\n"
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|expect)[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
# No length that fits 64 bits has more digits, and int() of an endless run of digits takes time.
_DIGITS = 19


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """
    The head of a request.

    `size` counts its bytes with the blank line. `body` is the length of the body in bytes, None if only
    the parser can say what it is.
    """

    size: int
    body: int | None
    expects_continue: bool


def find_head(received: bytearray, searched: int = 0) -> Head | None:
    """Head at the start of `received`, None while incomplete; its first `searched` bytes hold no end."""
    end = received.find(_END, max(0, searched - len(_END) + 1))
    if end < 0:
        return None
    lengths: list[bytes] = []
    transfer_encoded = expects_continue = False
    for field in _FRAMING.finditer(received, 0, end):
        name, value = field[1].lower(), bytes(field[2]).rstrip(b" \t")
        if name == b"content-length":
            lengths.append(value)
        elif name == b"expect":
            expects_continue = value.lower() == b"100-continue"
        else:
            transfer_encoded = True
    body = None if transfer_encoded else _length(lengths)
    return Head(size=end + len(_END), body=body, expects_continue=expects_continue)


def _length(values: list[bytes]) -> int | None:
    if not values:
        return 0
    if len(values) > 1 or not values[0].isdigit():
        return None
    return int(values[0]) if len(values[0]) <= _DIGITS else sys.maxsize
