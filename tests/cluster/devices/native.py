"""The same claims under a ResourceQuota of Kubernetes, which counts devices by DeviceClass: by how much it is over or under."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.cluster.devices.charges import NOTHING, Devices
from tests.cluster.devices.paths import ADMIN_ACCESS, path
from tests.cluster.devices.worlds import CLASSES
from tests.controlplane import accepted
from tests.controlplane.client import Client

QUOTA = "native"


class Native(NamedTuple):
    """In cards. `admitted`: what all admitted claims may get. `refused`: how many would have fitted into `hard` by weight."""

    hard: Fraction
    admitted: Fraction
    refused: int

    @property
    def over(self) -> Fraction:
        return max(NOTHING, self.admitted - self.hard)


def key(device_class: str) -> str:
    return f"{device_class}.deviceclass.resource.k8s.io/devices"


def quota(client: Client, namespace: str, hard: dict[str, int]) -> None:
    """Make a ResourceQuota, and return when it is counted."""
    wanted = {name: str(count) for name, count in hard.items()}
    quotas = path(namespace, "resourcequotas")
    accepted(client.post(quotas, {"metadata": {"name": QUOTA}, "spec": {"hard": wanted}}))
    assert eventually(lambda: used(client, namespace).keys() == wanted.keys())


def used(client: Client, namespace: str) -> dict[str, str]:
    stored = client.get(path(namespace, "resourcequotas", QUOTA))[1]
    return dict(stored.get("status", {}).get("used", {}))


def claimed(
    client: Client, namespace: str, specs: Iterable[JSON], devices: Devices, hard: Fraction
) -> Native:
    """Make the claims in a namespace that may have that many devices of each DeviceClass, in order."""
    accepted(client.post("/api/v1/namespaces", {"metadata": {"name": namespace, **ADMIN_ACCESS}}))
    quota(client, namespace, {key(name): ceil(hard) for name in CLASSES})
    admitted, refused = NOTHING, 0
    for number, spec in enumerate(specs):
        body = {"metadata": {"name": f"c{number}"}, "spec": spec}
        status, answer = client.post(path(namespace, "resourceclaims"), body)
        weight = devices.bound(spec).least
        if status == 201:
            admitted += weight
        else:
            assert "exceeded quota: native" in answer["message"], answer
            refused += admitted + weight <= hard
    client.delete(path(namespace, "resourceclaims"))
    return Native(hard, admitted, refused)
