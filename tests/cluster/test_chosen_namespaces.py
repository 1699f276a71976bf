"""Namespaces that `webhooks.namespaceSelector` leaves out: the API server evaluates nothing there, and no tenant can choose."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.builders import container, gpu_container, pod
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.webhook import Webhook, install

CHOSEN, LEFT_OUT = "chosen", "left-out"
LABEL = {"gpus": "reviewed"}
"""As docs/operate/operations.md names it."""
PODS_ENTRIES = ("pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev")
EXCLUDED = re.compile(
    r'^apiserver_admission_match_condition_exclusions_total\{.*name="([^"]+)".*\} (\d+)', re.MULTILINE
)


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    for name, labels in ((CHOSEN, LABEL), (LEFT_OUT, {})):
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    # Where `install` sees by a pod that the webhook is called.
    plane.kubectl("label", "namespace", "default", *(f"{key}={value}" for key, value in LABEL.items()))
    with Webhook(plane) as running:
        documents = running.manifests()
        for entry in (entry for document in documents for entry in document.get("webhooks", ())):
            if "namespaceSelector" in entry:
                entry["namespaceSelector"]["matchLabels"] = LABEL
        install(plane, documents, running.calls)
        yield running
        running.unregister()
    plane.kubectl("label", "namespace", "default", *(f"{key}-" for key in LABEL))


def excluded(plane: ControlPlane) -> Counter[str]:
    """Return how often a matchCondition kept a pod from either webhook: each time the API server has converted the pod."""
    counts: Counter[str] = Counter()
    for name, count in EXCLUDED.findall(plane.client().get("/metrics")[1]):
        if name in PODS_ENTRIES:
            counts[name] += int(count)
    return counts


def create(plane: ControlPlane, namespace: str, name: str, *, gpus: bool) -> None:
    document = pod(gpu_container() if gpus else container())
    document["metadata"] = {"name": name, "namespace": namespace}
    accepted(plane.client().post(f"/api/v1/namespaces/{namespace}/pods", document, {"dryRun": "All"}))


@pytest.mark.parametrize(
    ("namespace", "times"), [pytest.param(CHOSEN, 1, id=CHOSEN), pytest.param(LEFT_OUT, 0, id=LEFT_OUT)]
)
def test_what_a_pod_costs(plane: ControlPlane, webhook: Webhook, namespace: str, times: int) -> None:
    before, calls = excluded(plane), webhook.calls()
    create(plane, namespace, "cpu", gpus=False)
    assert excluded(plane) - before == Counter(dict.fromkeys(PODS_ENTRIES, times)) + Counter()
    assert webhook.calls() == calls

    create(plane, namespace, "gpu", gpus=True)
    assert webhook.calls() - calls == Counter(mutate=times, validate=times) + Counter()


def test_without_conditions_a_pod_without_gpus_is_reviewed_as_well(
    plane: ControlPlane, webhook: Webhook
) -> None:
    documents = webhook.manifests()
    for entry in (entry for document in documents for entry in document.get("webhooks", ())):
        if "namespaceSelector" in entry:
            entry["namespaceSelector"]["matchLabels"] = LABEL
        if entry["name"] in PODS_ENTRIES:
            del entry["matchConditions"]
    install(plane, documents, webhook.calls)

    def reviewed(namespace: str) -> Counter[str]:
        calls = webhook.calls()
        create(plane, namespace, "cpu", gpus=False)
        return webhook.calls() - calls

    assert eventually(lambda: reviewed(CHOSEN) == Counter(mutate=1, validate=1))
    before = excluded(plane)
    assert reviewed(CHOSEN) == Counter(mutate=1, validate=1)
    assert reviewed(LEFT_OUT) == Counter()
    assert excluded(plane) == before


@pytest.mark.usefixtures("webhook")
def test_the_owners_of_a_namespace_cannot_take_its_label_away(plane: ControlPlane) -> None:
    for role in ("view", "edit", "admin"):
        # What `admin` aggregates, which nobody does without a controller-manager.
        name = f"system:aggregate-to-{role}"
        plane.kubectl("create", "rolebinding", role, "-n", CHOSEN, f"--clusterrole={name}", "--user=engineer")
    tenant = plane.client("engineer")
    assert eventually(lambda: tenant.get(f"/api/v1/namespaces/{CHOSEN}/pods")[0] == 200)
    status, _ = tenant.patch(
        f"/api/v1/namespaces/{CHOSEN}", {"metadata": {"labels": dict.fromkeys(LABEL, None)}}
    )
    assert status == 403
