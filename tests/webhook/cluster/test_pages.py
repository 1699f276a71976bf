"""Pages of identities."""

import json

import msgspec
import pytest

from webhook.cluster.pages import Identity, Page, page_of_identities

LONG = "continue/" + "x" * 300

ITEMS = [Identity("train-0", "uid-0", "41", "team"), Identity("wärme", "uid-1", "42")]


def test_a_page() -> None:
    objects = [
        {"metadata": {"name": each.name, "uid": each.uid, "resourceVersion": each.resource_version}}
        for each in ITEMS
    ]
    objects[0]["metadata"]["namespace"] = "team"
    found = json.dumps({"metadata": {"resourceVersion": "43", "continue": LONG}, "items": objects}).encode()
    assert page_of_identities(found) == Page("43", LONG, ITEMS)
    assert page_of_identities(b'{"metadata": {"resourceVersion": "43"}, "items": null}') == Page("43", "", [])


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b'{"metadata": {"resourceVersion": "43"}, "items": [', id="cut"),
        pytest.param(b'{"metadata": {}, "items": [{"metadata": {"name": "train-0"}}]}', id="without-a-uid"),
    ],
)
def test_a_page_that_cannot_be_read(document: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        page_of_identities(document)
