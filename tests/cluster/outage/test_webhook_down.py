"""No replica answers: what the cluster may still do, what it refuses, and with which words."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.controllers import is_there
from tests.cluster.outage import absence
from tests.cluster.outage.samples import CRON_JOB, DEFINITIONS, DEPLOYMENT, JOB, OURS, RESOURCE_QUOTA, pod
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.webhook import apply_all, manifests, summed, uninstall

CPU_PODS = 50
HOST = 60
NAMESPACE = "outage"
PODS = "/api/v1/namespaces/{}/pods"
NO_LIMIT = 30.0
"""Seconds. More than any timeout of ours, and less than the API server has for a request: for answers that must only come."""

refused = pytest.param("refusing", id="refused")
swallowed = pytest.param("swallowing", id="black-holed", marks=pytest.mark.slow)
hanging = pytest.param("silent", id="hanging", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> ControlPlane:
    """Serve the API with all that deploy/ has, but the configurations."""
    client = plane.client()
    for document in DEFINITIONS.values():
        assert client.apply(document).status < 300
    for name in (NAMESPACE, "gpu-admission"):
        client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    for plural in DEFINITIONS:
        assert is_there(plane, f"/apis/gpu-admission.dev/v1alpha1/{plural}")
    return plane


@pytest.fixture(scope="module", params=[refused, swallowed, hanging])
def outage(request: pytest.FixtureRequest, installed: ControlPlane, authority: Path) -> Iterator[str]:
    """Register configurations whose Service leads to where the webhook is away in one of the ways."""
    kind: str = request.param
    plane, client = installed, installed.client()
    address = plane.service_address(HOST)
    away: AbstractContextManager[None] = getattr(absence, kind)(address)
    with away:
        apply_all(plane, manifests(address, authority))
        while client.post(PODS.format(NAMESPACE), pod(gpu=True), {"dryRun": "All"})[0] == 201:
            time.sleep(0.05)  # the API server has not heard of the configurations yet
        yield kind
    uninstall(plane)


def calls(plane: ControlPlane) -> float:
    """Return how often the API server has called a webhook, in vain or not."""
    metrics = plane.client().get("/metrics")[1]
    return summed(metrics, "apiserver_admission_webhook_admission_duration_seconds_count")


@pytest.mark.usefixtures("outage")
def test_pods_without_gpus_are_created_as_if_there_were_no_webhook(plane: ControlPlane) -> None:
    before = calls(plane)
    for _ in range(CPU_PODS):
        accepted(plane.client().post(PODS.format(NAMESPACE), pod(gpu=False)))
    assert calls(plane) == before  # none of them has been kept waiting


WORDS = {
    "refusing": "dial tcp {}:443: connect: connection refused",
    "swallowing": "context deadline exceeded",
    "silent": "context deadline exceeded",
}


def test_gpu_pods_are_refused_by_a_message_that_says_what_to_do(plane: ControlPlane, outage: str) -> None:
    began = time.monotonic()
    status, answer = plane.client().post(PODS.format(NAMESPACE), pod(gpu=True))
    assert time.monotonic() - began < NO_LIMIT
    assert (status, answer["reason"]) == (500, "InternalError")
    assert answer["message"] == (
        'Internal error occurred: failed calling webhook "pods.mutate.gpu-admission.dev": failed to call webhook: '
        'Post "https://gpu-admission.gpu-admission.svc:443/mutate/gpu-pods-are-refused-while-this-webhook-is-away.'
        'try-again-in-a-minute.then-ask-your-cluster-administrators?timeout=5s": '
        + WORDS[outage].format(plane.service_address(HOST))
    )


WORKLOADS: dict[str, JSON] = {
    "/apis/apps/v1/namespaces/{}/deployments": DEPLOYMENT,
    "/apis/batch/v1/namespaces/{}/jobs": JOB,
    "/apis/batch/v1/namespaces/{}/cronjobs": CRON_JOB,
    "/api/v1/namespaces/{}/resourcequotas": RESOURCE_QUOTA,
}


def test_workloads_apply_within_the_short_timeout(plane: ControlPlane, outage: str) -> None:
    def create(path: str) -> tuple[int, Any, float]:
        began, body = time.monotonic(), WORKLOADS[path]
        named = {**body, "metadata": {"name": f"{body['metadata']['name']}-{outage}"}}
        return *plane.client().post(path.format(NAMESPACE), named), time.monotonic() - began

    before = calls(plane)
    with ThreadPoolExecutor(len(WORKLOADS)) as pool:  # each waits for a timeout
        created = dict(zip(WORKLOADS, pool.map(create, WORKLOADS), strict=True))
    assert {path: answer for path, (status, answer, _) in created.items() if status != 201} == {}
    assert calls(plane) == before + len(WORKLOADS)  # so each had one wait, of 2 s at most
    assert max(seconds for *_, seconds in created.values()) < NO_LIMIT


def test_our_own_kinds_can_still_be_changed(plane: ControlPlane, outage: str) -> None:
    client = plane.client()

    def change(plural: str) -> None:
        definition = DEFINITIONS[plural]["spec"]
        scope = f"namespaces/{NAMESPACE}/" if definition["scope"] == "Namespaced" else ""
        path = f"/apis/gpu-admission.dev/v1alpha1/{scope}{plural}"
        kind = {"apiVersion": "gpu-admission.dev/v1alpha1", "kind": definition["names"]["kind"]}
        accepted(client.post(path, {**kind, **OURS[plural]}))
        one = f"{path}/{OURS[plural]['metadata']['name']}"
        accepted(client.patch(one, {"metadata": {"labels": {"changed": outage}}}))
        accepted(client.delete(one))

    with ThreadPoolExecutor(len(DEFINITIONS)) as pool:  # each change waits for a timeout
        list(pool.map(change, DEFINITIONS))


def test_break_glass_is_the_deletion_of_the_configurations(plane: ControlPlane, outage: str) -> None:
    """The last way out needs nothing of ours: without configurations nobody is called. Last in this module."""
    uninstall(plane)
    client = plane.client()
    deadline = time.monotonic() + NO_LIMIT
    status, answer = 0, None
    while status != 201 and time.monotonic() < deadline:
        status, answer = client.post(PODS.format(NAMESPACE), pod(gpu=True))
    assert status == 201, (outage, answer)
