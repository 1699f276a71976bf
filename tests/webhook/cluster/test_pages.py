"""Pages of identities, in the two encodings in which an API server may send them."""

import json

import pytest

from webhook.cluster.pages import Identity, Page, page_of_identities

LONG = "continue/" + "x" * 300
"""Its length takes two bytes, as those of messages around it do."""


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(of: int, value: int) -> bytes:
    return varint(of << 3) + varint(value)


def metadata(name: str, namespace: str, uid: str, version: str) -> bytes:
    """Return an ObjectMeta with a generation, labels and 8 and 4 bytes that nobody knows, as `generated.proto` numbers them."""
    texts = ((1, name), (2, ""), (3, namespace), (4, ""), (5, uid), (6, version))
    labels = field(11, field(1, "app") + field(2, "y" * 200))
    unknown = varint(60 << 3 | 1) + b"8 bytes." + varint(61 << 3 | 5) + b"four"
    return unknown + b"".join(field(*text) for text in texts) + number(7, 300) + labels


def document(revision: str, continue_token: str, *objects: bytes) -> bytes:
    about = field(1, "") + field(2, revision) + field(3, continue_token) + number(4, 7)
    raw = field(1, about) + b"".join(field(2, field(1, each)) for each in objects)
    kind = field(1, field(1, "meta.k8s.io/v1") + field(2, "PartialObjectMetadataList"))
    return b"k8s\0" + kind + field(2, raw) + field(3, "") + field(4, "")


ITEMS = [Identity("train-0", "uid-0", "41", "team"), Identity("wärme", "uid-1", "42")]


def test_a_page_in_protobuf() -> None:
    found = document(
        "43", LONG, metadata("train-0", "team", "uid-0", "41"), metadata("wärme", "", "uid-1", "42")
    )
    assert page_of_identities(found) == Page("43", LONG, ITEMS)
    assert page_of_identities(document("43", "")) == Page("43", "", [])


def test_a_page_in_json() -> None:
    objects = [
        {"metadata": {"name": each.name, "uid": each.uid, "resourceVersion": each.resource_version}}
        for each in ITEMS
    ]
    objects[0]["metadata"]["namespace"] = "team"
    found = json.dumps({"metadata": {"resourceVersion": "43", "continue": LONG}, "items": objects}).encode()
    assert page_of_identities(found) == Page("43", LONG, ITEMS)
    assert page_of_identities(b'{"metadata": {"resourceVersion": "43"}, "items": null}') == Page("43", "", [])


def test_what_is_cut_or_of_another_kind_cannot_be_read() -> None:
    whole = document("43", "", metadata("train-0", "team", "uid-0", "41"))
    for end in range(5, len(whole) - 4):  # at the very end are two empty texts that are not read
        with pytest.raises(ValueError, match="protobuf"):
            page_of_identities(whole[:end])
    with pytest.raises(ValueError, match="protobuf"):
        page_of_identities(document("43", "", field(1, "without a uid")))
