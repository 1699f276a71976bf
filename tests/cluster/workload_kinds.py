"""CustomResourceDefinitions of workload kinds that others bring."""

import time

from tests.builders import JSON
from tests.controlplane import Client

FIELDS = ("spec", "status", "resource", "inference")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def crd(group: str, version: str, kind: str, scope: str) -> JSON:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The API server wants to know who approved of a group of k8s.io.
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": dict.fromkeys(FIELDS, anything)}},
                    "subresources": {"status": {}},
                }
            ],
        },
    }  # fmt: skip


def install(client: Client, group: str, version: str, kind: str, *, scope: str = "Namespaced") -> None:
    """Make a kind known, which tests of other files on the same plane may have done before; it stays."""
    deadline = time.monotonic() + 60
    status, made = client.post(CRDS, crd(group, version, kind, scope))
    assert status in {201, 409}, made
    while client.get(f"/apis/{group}/{version}/{kind.lower()}s")[0] != 200:
        assert time.monotonic() < deadline, f"the API server does not serve {kind}"
        time.sleep(0.05)
