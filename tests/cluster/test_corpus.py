"""Manifests that others wrote, through the API server without and with our webhook, with the built-in defaults.

Everything goes by server-side dry-run into a namespace of its own. What the API server accepts alone it has to accept with us,
or say why in a sentence of ours; and an ordinary pod must come out with nothing changed but its tolerations.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from policies.pods.annotations import DOMAIN, INJECTED
from policies.registry import RULES_BY_ID
from tests.builders import JSON
from tests.controlplane import Client, ControlPlane
from tests.controlplane.webhook import Webhook
from tests.corpus import CORPUS, objects
from webhook.configuration.decoding import Problem
from webhook.configuration.loader import load_directory
from webhook.workloads.places import pod_places

NAMESPACE = "corpus"
THREADS = 8
EVERY_TIME_ANOTHER = {"metadata.creationTimestamp", "metadata.managedFields", "metadata.uid"}

pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="no folder of manifests (shared/corpus, or GPU_ADMISSION_CORPUS)"
)


class Document(NamedTuple):
    """An object, where it is from, and the API server's path for creating one."""

    source: str
    path: str
    data: JSON

    @property
    def is_pod(self) -> bool:
        return bool(self.data["kind"] == "Pod")

    @property
    def is_ordinary(self) -> bool:
        """Whether it is a pod that asked for none of our help."""
        annotations = self.data["metadata"].get("annotations") or {}
        return self.is_pod and not any(key.startswith(DOMAIN) for key in annotations)


class Verdict(NamedTuple):
    document: Document
    alone: tuple[int, Any]
    with_us: tuple[int, Any]

    @property
    def refusal(self) -> str:
        """What was said of an object that is accepted without us only."""
        return "" if self.with_us[0] == 201 else str(self.with_us[1]["message"])

    @property
    def rules(self) -> list[str]:
        """The rules that our sentences name."""
        if "gpu-admission.dev" not in self.refusal:
            return []
        return [name for name in RULES_BY_ID if f"[{name}]" in self.refusal]


# ---- what there is


def served_kinds(client: Client) -> dict[tuple[str, str], str]:
    """Return (apiVersion, kind) → the path to create one at, of everything that this API server stores."""
    _, groups = client.get("/apis")
    versions = ["v1"] + [
        version["groupVersion"] for group in groups["groups"] for version in group["versions"]
    ]
    found = {}
    for version in versions:
        root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        for resource in client.get(root)[1]["resources"]:
            if "/" not in resource["name"] and "create" in resource["verbs"] and "get" in resource["verbs"]:
                place = f"{root}/namespaces/{NAMESPACE}" if resource["namespaced"] else root
                found[version, resource["kind"]] = f"{place}/{resource['name']}"
    return found


def in_our_namespace(data: JSON, path: str) -> JSON:
    """Return it with a name and namespace under which it can be created at `path`, whatever those of the original."""
    metadata = {**(data.get("metadata") or {})}
    for name in ("namespace", "uid", "resourceVersion", "creationTimestamp", "ownerReferences"):
        metadata.pop(name, None)
    if f"/namespaces/{NAMESPACE}/" in path:
        metadata |= {"namespace": NAMESPACE, "name": "written-by-others"}
    return {**data, "metadata": metadata}


def documents(client: Client) -> list[Document]:
    kinds = served_kinds(client)
    found = []
    for source, data in objects(CORPUS):
        path = kinds.get((data["apiVersion"], data["kind"]))
        if path is not None:
            found.append(Document(source, path, in_our_namespace(data, path)))
    return found


def pods_of(document: Document) -> Iterator[Document]:
    """Yield the pods that a controller would make from the templates of an object."""
    group = document.data["apiVersion"].rpartition("/")[0]
    for place in pod_places(load_directory(None).workload_kinds, group, document.data["kind"], document.data):
        assert not isinstance(place, Problem), place
        template = place.data
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        spec = with_claims(template["spec"], document)
        data = {"apiVersion": "v1", "kind": "Pod", **template, "spec": spec}
        yield Document(f"{document.source} ({document.data['kind']})", path, in_our_namespace(data, path))


def with_claims(spec: JSON, document: Document) -> JSON:
    """Return the spec with the volumes that the controller adds for the claims of a StatefulSet."""
    claims = [
        claim["metadata"]["name"] for claim in document.data.get("spec", {}).get("volumeClaimTemplates") or ()
    ]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return {**spec, "volumes": [*(spec.get("volumes") or ()), *volumes]} if volumes else spec


def create_what_they_name(client: Client, pods: list[Document]) -> None:
    """Create the priority and runtime classes that pods name, without which the API server rejects them."""
    for name in {pod.data["spec"].get("priorityClassName") for pod in pods} - {None}:
        client.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 1000})
    for name in {pod.data["spec"].get("runtimeClassName") for pod in pods} - {None}:
        client.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": "runc"})


# ---- the two answers


def answers(client: Client, found: list[Document]) -> list[tuple[int, Any]]:
    def dry_run(document: Document) -> tuple[int, Any]:
        # YAML's dates are texts in JSON, which is how kubectl sends them, too.
        return client.post(document.path, document.data, {"dryRun": "All"})

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(dry_run, found))


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Iterator[Client]:
    client = plane.client()
    assert client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})[0] == 201
    yield client
    client.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture(scope="module")
def verdicts(plane: ControlPlane, client: Client) -> list[Verdict]:
    """Everything that the API server accepts alone, pods from templates included, with both answers."""
    read = documents(client)
    create_what_they_name(client, [document for document in read if document.is_pod])
    first = answers(client, read)
    accepted = [document for document, (status, _) in zip(read, first, strict=True) if status == 201]
    pods = [pod for document in accepted for pod in pods_of(document)]
    create_what_they_name(client, pods)
    everything = [*accepted, *pods]
    alone = answers(client, everything)
    with Webhook(plane) as webhook:
        webhook.register()
        try:
            with_us = answers(client, everything)
        finally:
            webhook.unregister()
    together = zip(everything, alone, with_us, strict=True)
    print(f"{len(read)} objects of kinds that the API server knows, {len(accepted)} accepted by it")  # noqa: T201  figures
    return [Verdict(document, one, other) for document, one, other in together if one[0] == 201]


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field that is not the same in both."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif one != other:
        yield path


def test_what_the_api_server_accepts_we_accept_or_say_why(verdicts: list[Verdict]) -> None:
    refused = [verdict for verdict in verdicts if verdict.refusal]
    rules = Counter(rule for verdict in refused for rule in verdict.rules)
    kinds = Counter(verdict.document.data["kind"] for verdict in verdicts)
    print(f"accepted without us: {dict(kinds.most_common())}")  # noqa: T201  figures, shown by -rA
    print(f"of these refused by us: {len(refused)} {dict(rules)}")  # noqa: T201
    for verdict in refused:
        print(f"  {verdict.document.source}: {verdict.refusal}")  # noqa: T201

    assert [f"{verdict.document.source}: {verdict.refusal}" for verdict in refused if not verdict.rules] == []
    assert kinds["Pod"] >= 100


def test_an_ordinary_pod_changes_in_nothing_but_tolerations(verdicts: list[Verdict]) -> None:
    ordinary = [verdict for verdict in verdicts if verdict.document.is_ordinary and verdict.with_us[0] == 201]
    changed = 0
    for document, (_, before), (_, after) in ordinary:
        found = set(differences(before, after)) - EVERY_TIME_ANOTHER
        if found:
            changed += 1
            assert found <= {
                "spec.tolerations",
                "metadata.annotations",
                f"metadata.annotations.{INJECTED}",
            }, document
            had = before["spec"].get("tolerations", [])
            assert after["spec"]["tolerations"][: len(had)] == had
            annotations = {**after["metadata"]["annotations"]}
            reported = annotations.pop(INJECTED)
            assert annotations == before["metadata"].get("annotations", {})
            assert reported.startswith("gpu-toleration: ")
            assert "\n" not in reported

    print(f"{len(ordinary)} ordinary pods, {changed} of them got a toleration")  # noqa: T201
    assert 20 <= changed < len(ordinary)
