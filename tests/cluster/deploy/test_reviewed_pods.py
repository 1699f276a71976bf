"""`is_reviewed`, which says to `check` which pods the webhook gets, against the chart's match conditions in a real API server."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from policies.gpus.mapping_spec import AnnotationKey, Measure, ResourceMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from tests.builders import JSON, container, view
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import conditions_with
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, install
from webhook.configuration.loader import load_directory
from webhook.evaluation.creation import is_reviewed

TEAM = "reviewed"
KEYS = ("example.com/gpu-part", "example.com/gpu-parts-of")
RESOURCE_MAPPING = ResourceMapping(
    (
        *load_directory(None).resource_mapping.specs,
        ResourceMappingSpec(
            fraction_annotations=tuple(AnnotationKey(key=key, measure=Measure.FRACTION) for key in KEYS)
        ),
    )
)
"""The built-in mapping, and one with the keys of the chart's values."""
GPU, CPU = {"nvidia.com/gpu": "1"}, {"cpu": "1", "memory": "1Gi"}
Part = dict[str, Any]
"""Fields of a pod: `annotations`, and of its spec."""


def with_resources(**resources: Any) -> JSON:
    return container(resources=resources)


CONTAINERS: dict[str, JSON] = {
    "no resources": container(),
    "resources null": container(resources=None),
    "limits null": with_resources(limits=None, requests=None),
    "limits empty": with_resources(limits={}, requests={}),
    "cpu": with_resources(limits=CPU, requests=CPU),
    "hugepages": with_resources(limits={**CPU, "hugepages-2Mi": "2Mi"}),
    "a limit": with_resources(limits=GPU),
    "a request": with_resources(requests=GPU),
    "both": with_resources(limits={**CPU, **GPU}, requests=GPU),
    "zero": with_resources(limits={"nvidia.com/gpu": "0"}),
    "an amount of null": with_resources(limits={"nvidia.com/gpu": None}),
    "a resource that no mapping knows": with_resources(limits={"example.com/next-year": "1"}),
}
NAMES = (
    *("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name", "gpu"),
    *("nvidia.com/gpu", "gpu-admission.dev/gpu-class", "gpu-admission.dev/injected", "x-gpu-admission.dev/x"),
    *("kubernetes.io/limit-ranger", *KEYS, "example.com/other"),
)
ANNOTATIONS: dict[str, Part] = {
    **{f"annotation {name}": {"annotations": {name: "1"}} for name in NAMES},
    "annotations null": {"annotations": None},
    "annotations empty": {"annotations": {}},
}
CLAIM = [{"name": "gpu", "resourceClaimName": "mine"}]
CLAIMS: dict[str, Part] = {
    "claims null": {"resourceClaims": None},
    "claims empty": {"resourceClaims": []},
    "a claim": {"resourceClaims": CLAIM},
    "a template": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
}
GATES: dict[str, Part] = {
    "gates null": {"schedulingGates": None},
    "a gate of others": {"schedulingGates": [{"name": "example.com/quota"}]},
    "our gate": {"schedulingGates": [{"name": "example.com/quota"}, {"name": "gpu-admission.dev/quota"}]},
}


def _named(name: str, of: JSON) -> JSON:
    return {**of, "name": name}


ALONE: dict[str, Part] = {
    **{f"container: {name}": {"containers": [of]} for name, of in CONTAINERS.items()},
    **{
        f"second container: {name}": {"containers": [_named("first", container()), of]}
        for name, of in CONTAINERS.items()
    },
    **{
        f"init container: {name}": {"initContainers": [_named("init", of)]} for name, of in CONTAINERS.items()
    },
    **{
        f"sidecar: {name}": {"initContainers": [_named("init", {**of, "restartPolicy": "Always"})]}
        for name, of in CONTAINERS.items()
    },
    "init containers null": {"initContainers": None},
    "pod-level resources": {"resources": {"limits": CPU}},
    **ANNOTATIONS,
    **CLAIMS,
    **GATES,
}
"""Each part of a pod by itself. Beside it the pod asks for nothing."""
TOGETHER = {
    " and ".join(names): {key: value for name in names for key, value in ALONE[name].items()}
    for names in product(
        ("container: cpu", "container: a limit"),
        ("init container: cpu", "init container: a limit"),
        ("claims empty", "a claim"),
        ("a gate of others", "our gate"),
        ("annotation example.com/other", "annotation gpu-fraction"),
    )
}
"""For each part of the conditions, pods of which it holds and pods of which it does not, beside all others."""


def pod(*, annotations: dict[str, str] | None = None, **spec: Any) -> JSON:
    return {
        "metadata": {"generateName": "pod-", "annotations": annotations},
        "spec": {"containers": [container()], **spec},
    }


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    plane.kubectl("create", "namespace", TEAM)
    plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", TEAM)
    with Webhook(plane) as running:
        documents, conditions = running.manifests(), conditions_with(*KEYS)
        for entry in (entry for document in documents for entry in document.get("webhooks", ())):
            entry["matchConditions"] = conditions[entry["name"]]
        install(plane, documents, running.calls)
        assert eventually(lambda: is_called(running, plane, ANNOTATIONS[f"annotation {KEYS[0]}"]))
        yield running
        running.unregister()


def is_called(webhook: Webhook, plane: ControlPlane, part: Part) -> bool:
    """Whether the API server sends the webhook a pod like that."""
    before = webhook.calls()
    status, answer = plane.client().post(f"/api/v1/namespaces/{TEAM}/pods", pod(**part), {"dryRun": "All"})
    found = webhook.calls() - before
    assert status == 201 or (status in {403, 422} and found), answer
    return bool(found)


@pytest.mark.parametrize("parts", [pytest.param(ALONE, id="alone"), pytest.param(TOGETHER, id="together")])
def test_is_reviewed(webhook: Webhook, plane: ControlPlane, parts: dict[str, Part]) -> None:
    ours = {name: is_reviewed(view(pod(**part)), RESOURCE_MAPPING) for name, part in parts.items()}

    assert {name: is_called(webhook, plane, part) for name, part in parts.items()} == ours
    assert set(ours.values()) == {True, False}
