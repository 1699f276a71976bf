"""Pods with ResourceClaims on a real API server: those of a NIC stay as they are, those of a GPU are GPU pods."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.builders import JSON, container, manifest
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import eventually
from tests.controlplane import CLAIMS_API, ControlPlane, accepted
from tests.controlplane.nodes import create_gpu_node
from tests.controlplane.webhook import Webhook, serving

DEVICE_CLASSES = {
    "fast-links": "device.driver == 'dra.net'",
    "team-cards": "device.driver == 'gpu.nvidia.com'",
    "anything": "device.attributes['example.com'].size > 3",
}
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: NAME}
spec:
  match: {namespaces: [NAME]}
  rules:
    gpu-class: {default: DEFAULT, allowed: [ALLOWED]}
    readiness-delay: {modelLoadSeconds: 60}
"""
OPEN, STRICT = "devices-open", "devices-strict"
CLASSES = ("nvidia-a100-80gb", "nvidia-t4")
TAINT = {"key": "devices", "value": "test", "effect": "NoSchedule"}
"""Pods of other tests stay away."""
INJECTED = "gpu-admission.dev/injected"
UNCLASSIFIED = "no class that namespace devices-strict may use has a node that takes the pod now"


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    client = plane.client()
    install_configuration_kinds(plane)
    for name, expression in DEVICE_CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        accepted(client.post(f"{CLAIMS_API}/deviceclasses", {"metadata": {"name": name}, "spec": spec}))
    for name in CLASSES:
        create_gpu_node(client, f"devices-{name}", labels={"accelerator": name}, taints=[TAINT])
    reading = ("--kubeconfig", plane.kubeconfig())
    with serving(plane, "", OPEN, STRICT, host=17, arguments=reading) as webhook:
        for namespace, default, allowed in ((OPEN, "nvidia-a100-80gb", '"*"'), (STRICT, "null", "nvidia-t4")):
            text = POLICY.replace("NAME", namespace).replace("ALLOWED", allowed).replace("DEFAULT", default)
            kinds = [(claim(name, namespace), template(name, namespace)) for name in DEVICE_CLASSES]
            for document in (yaml.safe_load(text), *(each for pair in kinds for each in pair)):
                assert client.apply(document).status == 201
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        opened, strict = pod("probe", OPEN, resources=limits), pod("probe", STRICT, resources=limits)
        assert eventually(lambda: "nodeSelector" in sent(plane, opened)[1].get("spec", {})), OPEN
        assert eventually(lambda: sent(plane, strict)[0] == 403), STRICT
        yield webhook
    for namespace in (OPEN, STRICT):
        client.delete(f"/apis/gpu-admission.dev/v1alpha1/gpupolicies/{namespace}")
    for name in DEVICE_CLASSES:
        client.delete(f"{CLAIMS_API}/deviceclasses/{name}")
    for name in CLASSES:
        client.delete(f"/api/v1/nodes/devices-{name}")


PODS = "/api/v1/namespaces/{}/pods"


def _spec(device_class: str) -> JSON:
    return {"devices": {"requests": [{"name": "some", "exactly": {"deviceClassName": device_class}}]}}


def _object(kind: str, name: str, namespace: str, spec: JSON) -> JSON:
    return manifest(CLAIMS_API.removeprefix("/apis/"), kind, name, spec, namespace=namespace)


def claim(device_class: str, namespace: str) -> JSON:
    return _object("ResourceClaim", device_class, namespace, _spec(device_class))


def template(device_class: str, namespace: str, name: str = "") -> JSON:
    return _object("ResourceClaimTemplate", name or device_class, namespace, {"spec": _spec(device_class)})


def pod(name: str, namespace: str, *claims: JSON, resources: JSON | None = None) -> JSON:
    uses = resources or {"claims": [{"name": each["name"]} for each in claims]}
    server = container(resources=uses, readinessProbe={"httpGet": {"path": "/", "port": 80}})
    spec = {"containers": [server], "resourceClaims": list(claims)}
    return manifest("v1", "Pod", name, spec, namespace=namespace)


def by_name(name: str) -> JSON:
    return {"name": "mine", "resourceClaimName": name}


def by_template(name: str) -> JSON:
    return {"name": "mine", "resourceClaimTemplateName": name}


def sent(plane: ControlPlane, document: JSON) -> tuple[int, Any]:
    path = PODS.format(document["metadata"]["namespace"])
    return plane.client().post(path, document, {"dryRun": "All"})


def tolerated(stored: JSON) -> set[str]:
    given = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    return {each["key"] for each in stored["spec"].get("tolerations", ())} - given


each_reference = pytest.mark.parametrize("reference", [by_name, by_template], ids=["claim", "template"])


@each_reference
def test_a_pod_with_the_claim_of_a_nic_stays_as_it_is(
    plane: ControlPlane, webhook: Webhook, reference: Any
) -> None:
    before = webhook.calls()
    stored = accepted(sent(plane, pod("linked", STRICT, reference("fast-links"))))
    assert webhook.calls()["mutate"] > before["mutate"], "it was reviewed"
    assert INJECTED not in stored["metadata"].get("annotations", {})
    assert (tolerated(stored), "nodeSelector" in stored["spec"]) == (set(), False)


@each_reference
@pytest.mark.usefixtures("webhook")
def test_a_pod_with_the_claim_of_a_gpu_gets_what_gpu_pods_get_but_no_default_class(
    plane: ControlPlane, reference: Any
) -> None:
    stored = accepted(sent(plane, pod("carded", OPEN, reference("team-cards"))))
    assert tolerated(stored) == {"nvidia.com/gpu"}
    assert stored["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] == 72
    assert "nodeSelector" not in stored["spec"]


@pytest.mark.parametrize("claimed", ["team-cards", "anything"])
@pytest.mark.usefixtures("webhook")
def test_what_may_be_a_gpu_is_held_to_the_classes_of_its_namespace(plane: ControlPlane, claimed: str) -> None:
    status, answer = sent(plane, pod("carded", STRICT, by_template(claimed)))

    assert status == 403
    assert UNCLASSIFIED in answer["message"]


@pytest.mark.usefixtures("webhook")
def test_a_template_and_its_pod_that_are_applied_together(plane: ControlPlane) -> None:
    """The watch of the webhook learns of the template in some milliseconds, and the pod is there before."""
    names = [f"together-{number}" for number in range(8)]
    for name in names:
        for document in (template("fast-links", OPEN, name), pod(name, OPEN, by_template(name))):
            assert plane.client().apply(document).status == 201
    for name in names:
        stored = plane.client().get(f"{PODS.format(OPEN)}/{name}")[1]
        assert (name, tolerated(stored), stored["spec"].get("nodeSelector")) == (name, set(), None)
