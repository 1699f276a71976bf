"""What we count of a pod, against what the API server's own ResourceQuota charges for the very same pod.

Pods with init containers, sidecars, overhead (by RuntimeClass) and several GPU resources are created one after the other in
namespaces that have a ResourceQuota of `requests.<resource>`; what each adds to the quota's `used` must be what we make of the
pod as it was stored. The same for ResourceClaims and `<DeviceClass>.deviceclass.resource.k8s.io/devices`.
"""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest

from policies.gpus.claimed_devices import decode_claim
from policies.pods.pod import decode_pod
from policies.pods.quantity import NANO, parse_quantity
from policies.quota.amounts import RESOURCES
from policies.quota.claim_demand import claim_demand
from policies.quota.demand import UnclassifiedPods, pod_demand
from tests.builders import JSON, container
from tests.controlplane import CLAIMS_API, Client, ControlPlane, minor_version
from webhook.configuration.loader import load_directory

SEED = 20260725
CLAIMS, NAMESPACES = 200, 8
QUOTA = "everything"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
COUNTS_IMPLICIT_NAMES = minor_version() >= 36  # DRAExtendedResource, on by default
GPUS = [
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "amd.com/gpu",
    *[IMPLICIT + "gpu.nvidia.com"] * COUNTS_IMPLICIT_NAMES,
]
ASKED = [*GPUS, "example.com/dongle"]
"""The last one is no GPU: it costs us nothing."""

AMOUNTS = ["0", "1", "1", "2", "3", "8", "1000m", "4000m", "1e0", "+2", "16", "1k"]
OVERHEADS: dict[str, JSON] = {
    "with-a-gpu": {"nvidia.com/gpu": "1"},
    "with-slices": {"nvidia.com/mig-1g.10gb": "2", "cpu": "250m"},
    "with-cpu": {"cpu": "100m", "memory": "64Mi"},
}

DEVICE_CLASSES = ["gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"]
PER_CLASS = ".deviceclass.resource.k8s.io/devices"


class Counted(NamedTuple):
    """A pod (or claim) as it was stored, and by how much it raised each `used` of the quota."""

    stored: JSON
    counted: dict[str, Fraction]


def resources(choose: random.Random) -> JSON:
    names = choose.sample(ASKED, choose.choice([0, 1, 1, 1, 2, 2, 3]))
    requested = {name: choose.choice(AMOUNTS) for name in names}
    # Defaulting copies a limit; a request of its own must be the same number.
    both = {name: amount for name, amount in requested.items() if choose.random() < 0.3}
    return {"limits": requested, "requests": both}


def pods(number: int) -> Iterator[JSON]:
    choose = random.Random(SEED)  # noqa: S311  the same pods in every run
    for index in range(number):
        spec: JSON = {
            "containers": [
                container(f"app-{n}", resources=resources(choose)) for n in range(choose.choice([1, 1, 2, 3]))
            ],
            "initContainers": [
                container(
                    f"init-{n}",
                    resources=resources(choose),
                    **({"restartPolicy": "Always"} if choose.random() < 0.5 else {}),
                )
                for n in range(choose.choice([0, 0, 1, 2, 3, 4]))
            ],
        }
        if choose.random() < 0.3:
            spec["runtimeClassName"] = choose.choice(list(OVERHEADS))
        if choose.random() < 0.2:
            spec["schedulingGates"] = [{"name": "example.com/later"}]
        yield {"metadata": {"name": f"pod-{index}-of-{number}"}, "spec": spec}


def namespace(number: int) -> str:
    return f"demand-{number}"


def claims_path(number: int) -> str:
    return f"{CLAIMS_API}/namespaces/{namespace(number)}/resourceclaims"


def created(answer: tuple[int, Any]) -> Any:
    assert answer[0] in {200, 201}, answer
    return answer[1]


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Iterator[Client]:
    client = plane.client()
    for name, overhead in OVERHEADS.items():
        body = {"metadata": {"name": name}, "handler": "any", "overhead": {"podFixed": overhead}}
        created(client.post("/apis/node.k8s.io/v1/runtimeclasses", body))
    keys = [f"requests.{name}" for name in ASKED] + [name + PER_CLASS for name in DEVICE_CLASSES]
    hard = dict.fromkeys(keys, "1000000")
    for number in range(NAMESPACES):
        created(client.post("/api/v1/namespaces", {"metadata": {"name": namespace(number)}}))
        path = f"/api/v1/namespaces/{namespace(number)}/resourcequotas"
        quota = created(client.post(path, {"metadata": {"name": QUOTA}, "spec": {"hard": hard}}))
        # No controller runs here that would do it, and without a status the API server rejects every pod.
        quota["status"] = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        created(client.put(f"{path}/{QUOTA}/status", quota))
    yield client
    for number in range(NAMESPACES):
        client.delete(claims_path(number))
        client.delete(f"/api/v1/namespaces/{namespace(number)}/pods", {"gracePeriodSeconds": 0})
        client.delete(f"/api/v1/namespaces/{namespace(number)}")
    for name in OVERHEADS:
        client.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{name}")


def used(client: Client, number: int) -> dict[str, Fraction]:
    quota = created(client.get(f"/api/v1/namespaces/{namespace(number)}/resourcequotas/{QUOTA}"))
    return {
        name.removeprefix("requests."): Fraction(parse_quantity(amount).nano, NANO)
        for name, amount in quota["status"]["used"].items()
    }


def counted(client: Client, number: int, documents: list[JSON]) -> list[Counted]:
    """Create the pods (or claims) one by one, and read after each what the quota says."""
    found = []
    before = used(client, number)
    path = claims_path(number) if documents[0].get("kind") else f"/api/v1/namespaces/{namespace(number)}/pods"
    for document in documents:
        stored = created(client.post(path, document))
        after = used(client, number)
        found.append(Counted(stored, {name: amount - before[name] for name, amount in after.items()}))
        before = after
    return found


def all_counted(client: Client, documents: list[JSON]) -> list[Counted]:
    """Create everything, in all namespaces at once."""
    shares = [documents[number::NAMESPACES] for number in range(NAMESPACES)]
    with ThreadPoolExecutor(NAMESPACES) as threads:
        each = threads.map(lambda number: counted(client, number, shares[number]), range(NAMESPACES))
        return [item for items in each for item in items]


@pytest.mark.parametrize("number", [400, pytest.param(1000, marks=pytest.mark.slow)])
def test_our_demand_is_what_the_api_servers_quota_charges(client: Client, number: int) -> None:
    found = all_counted(client, list(pods(number)))

    configuration = load_directory(None)
    different = []
    seen: Counter[str] = Counter()
    for pod, counted in found:
        view = decode_pod(msgspec.json.encode(pod))
        demand = pod_demand(view, configuration, UnclassifiedPods.TOTAL_ONLY)
        ours = {name: demand.vector.get(RESOURCES + name, Fraction(0)) for name in GPUS}
        if demand.denials or any(ours[name] != counted[name] for name in GPUS):
            different.append(f"demand {ours}, the quota {counted}: {pod['spec']}")
        seen.update(kind for kind, is_there in kinds(pod, counted).items() if is_there)

    print(f"{len(found)} pods:", dict(sorted(seen.items())))  # noqa: T201  the figures, shown by -rA
    assert not different, f"{len(different)}:\n" + "\n".join(different[:20])
    assert len(found) == number
    assert min(seen.values()) >= number / 40, "some kind of pod is hardly there"
    assert set(seen) == set(kinds(found[0].stored, found[0].counted))


def kinds(pod: JSON, counted: dict[str, Fraction]) -> dict[str, bool]:
    """Return what is special about the pod, so that no kind of it is missing."""
    spec = pod["spec"]
    init = spec.get("initContainers", [])
    requested = [name for name in GPUS if counted[name]]
    return {
        "init containers": any("restartPolicy" not in each for each in init),
        "sidecars": any("restartPolicy" in each for each in init),
        "overhead of GPUs": any(name in GPUS for name in spec.get("overhead", {})),
        "several GPU resources": len(requested) > 1,
        "gated": "schedulingGates" in spec,
        "no GPU": not requested,
        **{name: counted[name] > 0 for name in ASKED},
    }


def claims() -> Iterator[JSON]:
    choose = random.Random(SEED)  # noqa: S311  the same claims in every run

    def devices() -> JSON:
        counted = choose.choice([{}, {"allocationMode": "ExactCount", "count": choose.randint(1, 9)}])
        every = {"allocationMode": "All"}
        return {"deviceClassName": choose.choice(DEVICE_CLASSES), **choose.choice([counted, counted, every])}

    for index in range(CLAIMS):
        requests: list[JSON] = []
        for number in range(choose.choice([1, 1, 2, 3])):
            alternatives = [{"name": f"way-{way}", **devices()} for way in range(choose.choice([0, 0, 2, 3]))]
            wanted = {"firstAvailable": alternatives} if alternatives else {"exactly": devices()}
            requests.append({"name": f"request-{number}", **wanted})
        yield {
            "apiVersion": CLAIMS_API.removeprefix("/apis/"),
            "kind": "ResourceClaim",
            "metadata": {"name": f"claim-{index}"},
            "spec": {"devices": {"requests": requests}},
        }


def test_what_a_claim_costs_is_what_the_api_servers_quota_charges(client: Client) -> None:
    configuration = load_directory(None)
    different = []
    seen: Counter[str] = Counter()
    for claim, counted in all_counted(client, list(claims())):
        decoded = decode_claim(msgspec.json.encode(claim))
        demand = claim_demand(decoded, configuration, UnclassifiedPods.TOTAL_ONLY)
        theirs = {name: counted[name + PER_CLASS] for name in DEVICE_CLASSES}
        ours = {name: demand.vector.get(RESOURCES + IMPLICIT + name, Fraction(0)) for name in DEVICE_CLASSES}
        if ours != theirs or demand.denials:
            different.append(f"charge {ours}, the quota {theirs}: {claim['spec']}")
        seen.update(name for name, amount in theirs.items() if amount)

    assert not different, f"{len(different)}:\n" + "\n".join(different[:20])
    assert set(seen) == set(DEVICE_CLASSES)
