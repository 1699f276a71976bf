"""What somebody tries who wants a claim that counts its small device to be allocated again, for another pod."""

import random

from tests.builders import JSON
from tests.cluster.devices.paths import path
from tests.cluster.devices.worlds import pod
from tests.controlplane import accepted
from tests.controlplane.client import Client

REFUSED = (403, 404)
"""It may be gone meanwhile."""


class Mischief:
    """In one namespace. The judge says whether any of it was worth its while."""

    def __init__(self, client: Client, namespace: str, seed: int) -> None:
        self._client, self._namespace = client, namespace
        self._pick = random.Random(f"mischief {seed}")  # noqa: S311
        self._orphaned: list[str] = []
        self._tried = 0

    def maybe(self) -> None:
        if self._pick.random() < 0.15:
            self._tried += 1
            self._pick.choice([self._take, self._orphan, self._borrow, self._give])()

    def end(self) -> None:
        """Let the pods go that the garbage collector could not orphan."""
        for name in self._orphaned:
            self._client.patch(path(self._namespace, "pods", name), {"metadata": {"finalizers": None}})

    def _take(self) -> None:
        """Take a claim from its pod."""
        if claim := self._claim(of_pod=True):
            self._patch(claim, None)

    def _orphan(self) -> None:
        """Have the garbage collector take it."""
        pods = self._client.get(path(self._namespace, "pods"))[1]["items"]
        if bound := [each["metadata"]["name"] for each in pods if "nodeName" in each["spec"]]:
            name = self._pick.choice(bound)
            orphan = {"gracePeriodSeconds": 0, "propagationPolicy": "Orphan"}
            if self._client.delete(path(self._namespace, "pods", name), orphan)[0] == 200:
                self._orphaned.append(name)

    def _borrow(self) -> None:
        """Have another pod use it."""
        if claim := self._claim(of_pod=True):
            uses = {"name": "devices", "resourceClaimName": claim}
            answer = self._client.post(path(self._namespace, "pods"), pod(f"borrows-{self._tried}", uses))
            is_gone = self._client.get(path(self._namespace, "resourceclaims", claim))[0] == 404
            assert answer[0] == 403 or is_gone, answer

    def _give(self) -> None:
        """Have it taken for the claim of a pod whose template is missing."""
        if claim := self._claim(of_pod=False):
            name = f"given-{self._tried}"
            wanted = {"name": "devices", "resourceClaimTemplateName": "missing"}
            made = accepted(self._client.post(path(self._namespace, "pods"), pod(name, wanted)))
            uid = made["metadata"]["uid"]
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
            self._patch(claim, [owner], {"resource.kubernetes.io/pod-claim-name": "devices"})

    def _claim(self, *, of_pod: bool) -> str | None:
        claims = self._client.get(path(self._namespace, "resourceclaims"))[1]["items"]
        metadata = [each["metadata"] for each in claims]
        found = [each["name"] for each in metadata if bool(each.get("ownerReferences")) is of_pod]
        return self._pick.choice(found) if found else None

    def _patch(
        self, claim: str, owners: list[JSON] | None, annotations: dict[str, str] | None = None
    ) -> None:
        metadata = {"ownerReferences": owners, "annotations": annotations or {}}
        answer = self._client.patch(path(self._namespace, "resourceclaims", claim), {"metadata": metadata})
        assert answer[0] in REFUSED, answer
