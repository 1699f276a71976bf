"""What people do with a pod that runs, for every field that a rule injects: all of it works as if nothing had been injected.

Law: an update that the API server accepts without us is stored identically with us, and what it refuses of an author's own change
stays refused. The same pod stands in a namespace that the webhook is never asked about, so both can be compared.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.pods.annotations import INJECTED
from tests.builders import JSON
from tests.controlplane import ControlPlane
from tests.controlplane.client import APPLY_PATCH, Client, accepted
from tests.controlplane.webhook import Webhook, serving

NAMESPACE, EXCLUDED = "reapplied", "kube-system"
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-requests: {completeLimits: true}
    gpu-class: {default: nvidia-a100, labelKey: nvidia.com/gpu.product}
    gpu-isolation: {mode: enforce}
    shared-memory: {mode: enforce, sizeLimit: 1Gi}
    readiness-delay: {modelLoadSeconds: 60}
    spot:
      mode: enforce
      pods: all
      serving: true
      nodeSelector: {pool: spot}
      tolerations: [{key: spot, operator: Exists}]
      minTerminationSeconds: 120
"""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TCP = {"tcpSocket": {"port": 80}}
OWN = {"key": "own", "operator": "Exists"}
FORGED = "gpu-toleration: toleration own, toleration nvidia.com/gpu:NoSchedule"


def manifest(name: str, **spec: Any) -> JSON:
    """Return a pod with something of its author's own in every list, and all that gives the rules something to inject."""
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    body = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 40,
        "tolerations": [OWN],
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [zone]}}},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "prepare", "image": "x:1"}],
        "containers": [
            {
                "name": "main",
                "image": "x:1",
                "env": [{"name": "HOME", "value": "/"}],
                "resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "1"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "livenessProbe": TCP,
                "readinessProbe": {**TCP, "initialDelaySeconds": 5},
            },
            {"name": "side", "image": "x:1"},
        ],
    }
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "annotations": {"gpu-admission.dev/model-uri": "s3://models/llama"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**body, **spec}}


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, POLICY, NAMESPACE, host=14) as running:
        yield running


@pytest.fixture(scope="module")
def client(plane: ControlPlane, webhook: Webhook) -> Client:  # noqa: ARG001  it has to be registered first
    return plane.client()


def path(name: str, namespace: str = NAMESPACE) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def stored(client: Client, name: str) -> JSON:
    return dict(client.get(path(name))[1])


def create(client: Client, document: JSON) -> JSON:
    namespace = document["metadata"]["namespace"]
    created = accepted(client.post(f"/api/v1/namespaces/{namespace}/pods", document))
    return dict(created)


@pytest.fixture(scope="module")
def pod(client: Client) -> JSON:
    """Return the stored pod that raw requests try to change, all of them dry runs."""
    return create(client, manifest("raw"))


def put(client: Client, document: JSON) -> tuple[int, Any]:
    metadata = document["metadata"]
    return client.put(path(metadata["name"], metadata["namespace"]), document, {"dryRun": "All"})


def without(*steps: str | int) -> Callable[[JSON], Any]:
    """Return what removes the member at the path below spec; a text in a list is the name, key or mountPath of an item."""

    def edit(spec: JSON) -> None:
        node = parent(spec, *steps)
        del node[at(node, steps[-1])]

    return edit


def parent(node: Any, *steps: str | int) -> Any:
    for step in steps[:-1]:
        node = node[at(node, step)]
    return node


def at(node: Any, step: str | int) -> Any:
    if isinstance(node, dict) or isinstance(step, int):
        return step
    return next(
        i for i, each in enumerate(node) if step in (each.get("name"), each.get("key"), each.get("mountPath"))
    )


def setting(value: Any, *steps: str | int) -> Callable[[JSON], Any]:
    """Return what sets the member at the path below spec."""

    def edit(spec: JSON) -> None:
        parent(spec, *steps)[steps[-1]] = value

    return edit


TERMS = ("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
OURS = {
    "toleration-of-the-resource": without("tolerations", "nvidia.com/gpu"),
    "toleration-of-the-pool": without("tolerations", "spot"),
    "node-selector": without("nodeSelector"),
    "node-affinity": without(*TERMS, 0, "matchExpressions", "nvidia.com/gpu.product"),
    "init-container": without("initContainers", "gpu-admission-fetch-model"),
    "volume-of-the-model": without("volumes", "gpu-admission-model"),
    "volume-of-shared-memory": without("volumes", "gpu-admission-shm"),
    "mount-of-the-model": without("containers", "main", "volumeMounts", "/model-cache"),
    "mount-of-shared-memory": without("containers", "main", "volumeMounts", "/dev/shm"),  # noqa: S108
    "variable": without("containers", "side", "env"),
    "variable-of-an-init-container": without("initContainers", "prepare", "env"),
    "limit": without("containers", "main", "resources", "limits"),
    "startup-probe": without("containers", "main", "startupProbe"),
    "shorter-delay": setting(5, "containers", "main", "readinessProbe", "initialDelaySeconds"),
    "no-delay": without("containers", "main", "readinessProbe", "initialDelaySeconds"),
    "shorter-grace-period": setting(40, "terminationGracePeriodSeconds"),
}
"""What an update may lack of each field that a rule injects."""
REFUSED = {
    "own-toleration-removed": without("tolerations", "own"),
    "default-toleration-of-another-operator": setting("Equal", "tolerations", 0, "operator"),
    "own-variable-removed": without("containers", "main", "env"),
    "own-volume-mount-removed": without("containers", "main", "volumeMounts", "/data"),
    "own-affinity-removed": without(*TERMS, 0, "matchExpressions", "zone"),
    "all-affinity-removed": without("affinity"),
    "own-init-container-removed": without("initContainers", "prepare"),
    "longer-delay": setting(90, "containers", "main", "readinessProbe", "initialDelaySeconds"),
    "own-probe-removed": without("containers", "main", "livenessProbe"),
    "other-node-selector": setting({"pool": "other"}, "nodeSelector"),
    "node-selector-more": setting({"pool": "spot", "disk": "ssd"}, "nodeSelector"),
    "another-amount": setting({"nvidia.com/gpu": "4"}, "containers", "main", "resources", "limits"),
    "container-removed": without("containers", "side"),
}
"""An author's own changes that no API server takes."""
ACCEPTED = {
    "nothing": lambda _spec: None,
    "image": setting("x:2", "containers", "main", "image"),
    "image-of-an-init-container": setting("x:2", "initContainers", "prepare", "image"),
    "image-of-what-was-injected": setting("x:2", "initContainers", "gpu-admission-fetch-model", "image"),
    "toleration-more": lambda spec: spec["tolerations"].insert(1, {"key": "more", "operator": "Exists"}),
    "tolerations-in-another-order": lambda spec: spec["tolerations"].reverse(),
    "deadline": setting(600, "activeDeadlineSeconds"),
    "toleration-seconds": setting(5, "tolerations", "node.kubernetes.io/not-ready", "tolerationSeconds"),
}
"""What an API server takes."""


def edited(document: JSON, *edits: Callable[[JSON], Any]) -> JSON:
    document = copy.deepcopy(document)
    for key in ("resourceVersion", "managedFields", "uid", "creationTimestamp", "generation"):
        document["metadata"].pop(key, None)
    for edit in edits:
        edit(document["spec"])
    return document


def parameters(edits: dict[str, Callable[[JSON], Any]]) -> list[Any]:
    return [pytest.param(edit, id=name) for name, edit in edits.items()]


@pytest.mark.parametrize("edit", parameters(OURS))
def test_what_was_injected_is_put_back(client: Client, pod: JSON, edit: Callable[[JSON], Any]) -> None:
    answer = accepted(put(client, edited(pod, edit)))
    assert answer["spec"] == pod["spec"]


@pytest.mark.parametrize("edit", parameters(REFUSED))
def test_what_is_immutable_is_refused(client: Client, pod: JSON, edit: Callable[[JSON], Any]) -> None:
    status, answer = put(
        client,
        edited(pod, edit, *OURS.values()) if edit is REFUSED["own-toleration-removed"] else edited(pod, edit),
    )

    assert (status, answer["reason"]) == (422, "Invalid"), answer


class Twins:
    """A stored pod, and its like in a namespace that the webhook is not asked about."""

    def __init__(self, client: Client, pod: JSON) -> None:
        like = edited(pod)
        like["metadata"]["namespace"] = EXCLUDED
        like.pop("status", None)
        self.both = (pod, create(client, like))
        assert self.both[0]["spec"] == self.both[1]["spec"]


@pytest.fixture(scope="module")
def twins(client: Client, pod: JSON) -> dict[bool, Twins]:
    """Return twins by whether they have scheduling gates."""
    gates = [{"name": "queue"}, {"name": "other"}]
    gated = create(client, manifest("gated", schedulingGates=gates))
    return {False: Twins(client, pod), True: Twins(client, gated)}


METADATA = st.fixed_dictionaries(
    {},
    optional={
        "annotations": st.sampled_from(
            [None, {}, {INJECTED: "x: toleration own"}, {"gpu-admission.dev/model-uri": "s3://models/other"}]
        ),
        "labels": st.just({"a": "b"}),
        "finalizers": st.just(["example.com/f"]),
    },
)
GATED = {
    "gates-removed": without("schedulingGates"),
    "one-gate-removed": without("schedulingGates", "queue"),
    "node-selector-gained": setting({"disk": "ssd"}, "nodeSelector"),
    "affinity-tightened": lambda spec: spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][0][
        "matchExpressions"
    ].append({"key": "disk", "operator": "Exists"}),
}
"""What an API server takes of a gated pod only."""


@given(
    is_gated=st.booleans(),
    names=st.lists(st.sampled_from([*ACCEPTED, *REFUSED, *GATED, *OURS]), max_size=3, unique=True),
    metadata=METADATA,
)
@settings(max_examples=settings().max_examples * 2, deadline=None)
def test_what_the_api_server_accepts_is_stored_as_without_us(
    twins: dict[bool, Twins], client: Client, is_gated: bool, names: list[str], metadata: JSON
) -> None:
    every = {**ACCEPTED, **REFUSED, **GATED, **OURS}
    answers = []
    for document in twins[is_gated].both:
        sent = edited(document)
        for name in sorted(names, key=lambda each: each not in OURS):  # one of OURS may undo a refused change
            try:
                every[name](sent["spec"])
            except (KeyError, IndexError, StopIteration):
                return  # another edit took it away, or it was never injected
        sent["metadata"].update(metadata)
        answers.append(put(client, sent))
    (status, with_us), (status_without, without_us) = answers

    if status_without == 200:
        assert status == 200, with_us
        assert with_us["spec"] == without_us["spec"]
        for key in ("annotations", "labels", "finalizers"):
            assert with_us["metadata"].get(key) == without_us["metadata"].get(key)
    elif (
        not is_gated and len(names) == 1 and names[0] in REFUSED
    ):  # another edit may undo it, or change its place
        assert status == 422, with_us
    elif set(names) <= {*ACCEPTED, *OURS} and "annotations" not in metadata:  # rules read annotations
        assert status == 200, with_us


KUBECTL = [
    pytest.param(["apply", "-f", "FILE"], id="apply"),
    pytest.param(["diff", "-f", "FILE"], id="diff"),
    pytest.param(["apply", "--server-side", "--force-conflicts", "-f", "FILE"], id="server-side-over-apply"),
    pytest.param(["replace", "-f", "FILE"], id="replace"),
    pytest.param(["edit", "-n", NAMESPACE, "-f", "FILE"], id="edit"),
]


@pytest.fixture(scope="module")
def applied(client: Client, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("applied") / "pod.yaml"
    file.write_text(yaml.safe_dump(manifest("applied")))
    plane.kubectl("apply", "-f", file)
    assert INJECTED in stored(client, "applied")["metadata"]["annotations"]
    return file


@pytest.mark.parametrize("arguments", KUBECTL)
def test_kubectl_works_twice(
    plane: ControlPlane, client: Client, applied: Path, arguments: list[str]
) -> None:
    before = stored(client, "applied")
    named = [str(applied) if each == "FILE" else each for each in arguments]

    for _ in range(2):
        done = plane.kubectl(*named, check=False, editor="sed -i s/x:1/x:3/")
        assert done.returncode == 0, done.stdout + done.stderr

    after = stored(client, "applied")
    assert edited(after, unimaged)["spec"] == edited(before, unimaged)["spec"]
    assert INJECTED in after["metadata"]["annotations"]


def unimaged(spec: JSON) -> None:
    for each in (*spec["containers"], *spec["initContainers"]):
        del each["image"]


def test_server_side_apply_works_again_and_by_another_manager(client: Client) -> None:
    document = manifest("server-side")
    query = {"fieldManager": "one"}
    first = accepted(client.patch(path("server-side"), document, query, content_type=APPLY_PATCH))

    for manager in ("one", "two"):
        query = {"fieldManager": manager, "force": "true"}
        again = accepted(client.patch(path("server-side"), document, query, content_type=APPLY_PATCH))
        assert again["spec"] == first["spec"]
        assert again["metadata"]["annotations"] == first["metadata"]["annotations"]


def test_a_forged_annotation_reverts_only_what_its_forger_removes(client: Client) -> None:
    """Who names a toleration of his own as injected cannot remove it: today's rules would inject it."""
    own = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    document = manifest("forged", tolerations=[OWN, own])
    document["metadata"]["annotations"][INJECTED] = FORGED
    before = create(client, document)

    status, answer = put(client, edited(before, without("tolerations", "nvidia.com/gpu")))
    assert (status, answer["spec"]) == (200, before["spec"])
    assert put(client, edited(before, without("tolerations", "own")))[0] == 422


def test_subresources_are_none_of_our_business(client: Client, webhook: Webhook) -> None:
    before = create(client, manifest("debugged"))
    calls = webhook.calls()
    debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x:1"}]}}
    cpu = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}]}}

    merge = "application/strategic-merge-patch+json"
    for subresource, patch in (("ephemeralcontainers", debugger), ("resize", cpu)):
        accepted(client.patch(f"{path('debugged')}/{subresource}", patch, content_type=merge))

    assert webhook.calls() == calls
    answer = accepted(put(client, edited(stored(client, "debugged"), *OURS.values())))
    assert answer["spec"]["tolerations"] == before["spec"]["tolerations"]
