"""What kubectl makes of a manifest before the API server sees it, and `check` likewise."""

import json

from tests.cases import cases
from tests.controlplane import ControlPlane
from webhook.configuration.yaml_documents import YamlDocument, load_documents

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: read-by-kubectl}\n"


@cases(
    "text",
    {
        "in-a-map": HEAD + "data: {key: first, other: x, key: last}\n",
        "maps-that-are-not-merged": HEAD + "data: {key: first}\ndata: {another: last}\n",
        "json": (
            '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "read-by-kubectl"}, '
            '"data": {"key": "first", "key": "last"}}'
        ),
    },
)
def test_of_duplicate_keys_the_last_one_counts(plane: ControlPlane, text: str) -> None:
    done = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)

    (document,) = load_documents(text)
    assert isinstance(document, YamlDocument)
    assert len(document.duplicates) == 1
    assert json.loads(done.stdout)["data"] == document.data["data"]
