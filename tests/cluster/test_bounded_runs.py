"""max-runtime and disruption on a real API server, with the real controller of Jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import JSON, deployment, gpu_container, manifest, pod, uid
from tests.cases import cases
from tests.cluster.applying import apply, named, stored
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import APPLY_PATCH
from tests.controlplane.webhook import Webhook, serving

NAMESPACE = "bounded"
POLICY = default_policy(
    {"max-runtime": {"mode": "enforce", "default": "8h", "max": "72h"}, "disruption": {"mode": "enforce"}}
)
EIGHT = 28_800
KEPT = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
TOO_LONG = "must be at most 259200 (72h), the longest runtime that the policy allows"


@pytest.fixture(scope="module", autouse=True)
def webhook(full_plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", full_plane.kubeconfig())
    with serving(full_plane, POLICY, NAMESPACE, arguments=reading) as running:
        yield running


def run(name: str, **spec: Any) -> JSON:
    base = {"restartPolicy": "Never", "automountServiceAccountToken": False, "serviceAccountName": "default"}
    return named(name, pod(gpu_container(), **{**base, **spec}), NAMESPACE)


def job(name: str, deadline: int | None = None) -> JSON:
    template = {"spec": {"containers": [gpu_container()], "restartPolicy": "Never"}}
    spec = {"template": template, "backoffLimit": 0}
    bounds = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    return manifest("batch/v1", "Job", name, {**spec, **bounds}, namespace=NAMESPACE)


def bounds_of(document: JSON) -> tuple[int | None, JSON]:
    """Return deadline and annotations of a stored pod, as far as our rules add them."""
    annotations = document["metadata"].get("annotations", {})
    return document["spec"].get("activeDeadlineSeconds"), {
        key: annotations[key] for key in KEPT if key in annotations
    }


def pods_of(plane: ControlPlane, name: str) -> list[JSON]:
    query = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
    found: list[JSON] = plane.client().get(f"/api/v1/namespaces/{NAMESPACE}/pods", query)[1]["items"]
    return found


@cases(
    ("name", "spec", "want"),
    a_run=("run", {}, (EIGHT, KEPT)),
    its_own_deadline=("own", {"activeDeadlineSeconds": 60}, (60, KEPT)),
    a_server=("server", {"restartPolicy": "Always"}, (None, {})),
    a_notebook=("notebook", {"containers": [gpu_container(ports=[{"containerPort": 8888}])]}, (None, {})),
)
def test_a_pod_by_itself(
    full_plane: ControlPlane, name: str, spec: JSON, want: tuple[int | None, JSON]
) -> None:
    done, said = apply(full_plane, run(name, **spec))

    assert (done, "Warning" in said) == (True, False), said
    assert bounds_of(stored(full_plane, name, NAMESPACE)) == want


@cases(
    ("deadline", "want"),
    none_of_its_own=(None, EIGHT),
    longer_than_the_default=(172_800, 172_800),
    shorter_than_the_default=(600, 600),
)
def test_a_pod_of_a_job(full_plane: ControlPlane, deadline: int | None, want: int) -> None:
    name = f"train-{want}"
    done, said = apply(full_plane, job(name, deadline))
    assert (done, "Warning" in said) == (True, False), said

    (made,) = eventually(lambda: pods_of(full_plane, name), seconds=60)

    assert bounds_of(made) == (want, KEPT)


def test_a_job_that_may_run_too_long_is_warned_of_and_makes_no_pod(full_plane: ControlPlane) -> None:
    done, said = apply(full_plane, job("endless", 360_000))

    assert done
    assert (
        f'spec.activeDeadlineSeconds = "360000": set activeDeadlineSeconds: 259200; {TOO_LONG} [max-runtime]'
        in said
    )

    def failed() -> list[str]:
        query = {"fieldSelector": "reason=FailedCreate,involvedObject.name=endless"}
        found = full_plane.client().get(f"/api/v1/namespaces/{NAMESPACE}/events", query)[1]["items"]
        return [each["message"] for each in found]

    message = eventually(failed, seconds=60)[0]
    assert (
        "spec.activeDeadlineSeconds of Job/endless must be at most 259200 (72h), not 360000 [max-runtime]"
        in message
    )
    assert pods_of(full_plane, "endless") == []


def test_a_pod_that_may_run_too_long_is_denied(full_plane: ControlPlane) -> None:
    done, said = apply(full_plane, run("long", activeDeadlineSeconds=259_201))

    assert not done
    assert f'spec.activeDeadlineSeconds = "259201": set activeDeadlineSeconds: 259200; {TOO_LONG}' in said


@cases(
    ("kind", "api_version"),
    no_such_job=("Job", "batch/v1"),
    no_such_api=("XGBoostJob", "kubeflow.org/v1"),
    an_exempt_kind=("RayCluster", "ray.io/v1"),
    an_unknown_kind=("Endless", "example.com/v1"),
)
def test_a_forged_owner_does_not_take_the_deadline_away(
    full_plane: ControlPlane, kind: str, api_version: str
) -> None:
    owner = {"apiVersion": api_version, "kind": kind, "name": "nobody", "uid": uid(kind), "controller": True}
    document = run(f"forged-{kind.lower()}")
    document["metadata"]["ownerReferences"] = [owner]

    status, made = full_plane.client().post(
        f"/api/v1/namespaces/{NAMESPACE}/pods", document, {"dryRun": "All"}
    )

    assert (status, bounds_of(made)) == (201, (EIGHT, KEPT)), made


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["apply"], id="apply"),
        pytest.param(["apply", "--server-side", "--force-conflicts"], id="server-side"),
        pytest.param(["replace"], id="replace"),
    ],
)
def test_what_was_added_stays_when_the_manifest_comes_again(
    full_plane: ControlPlane, tmp_path: Path, arguments: list[str]
) -> None:
    name, file = f"again-{len(arguments)}-{arguments[0]}", tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(run(name)))
    first = ["create"] if arguments == ["replace"] else arguments

    for command in (first, arguments, arguments):
        done = full_plane.kubectl(*command, "-f", file, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    assert bounds_of(stored(full_plane, name, NAMESPACE)) == (EIGHT, KEPT)


def test_a_deadline_may_be_shortened_and_a_pod_released(full_plane: ControlPlane) -> None:
    client, path = full_plane.client(), f"/api/v1/namespaces/{NAMESPACE}/pods/shortened"
    accepted(client.apply(run("shortened"))[:2])
    shorter = run("shortened", activeDeadlineSeconds=60)
    shorter["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "false"}

    changed = accepted(
        client.patch(path, shorter, {"fieldManager": "one", "force": "true"}, content_type=APPLY_PATCH)
    )

    assert bounds_of(changed) == (60, {**KEPT, "karpenter.sh/do-not-disrupt": "false"})


def test_a_resource_quota_counts_the_pod_among_those_that_end(full_plane: ControlPlane) -> None:
    client, namespace = full_plane.client(), "scoped"
    accepted(client.post("/api/v1/namespaces", {"metadata": {"name": namespace}}))
    for name, most in (("Terminating", 1), ("NotTerminating", 0)):
        spec = {"hard": {"pods": str(most)}, "scopes": [name]}
        apply(full_plane, manifest("v1", "ResourceQuota", name.lower(), spec, namespace=namespace))

    def counted() -> bool:
        quotas = client.get(f"/api/v1/namespaces/{namespace}/resourcequotas")[1]["items"]
        return all(each["status"].get("used") for each in quotas)

    assert eventually(counted, seconds=60)
    written = pod(gpu_container(), restartPolicy="Never", serviceAccountName="default")
    done, said = apply(full_plane, named("ends", written, namespace))
    assert done, said
    done, said = apply(
        full_plane,
        named("stays", {**written, "spec": {**written["spec"], "restartPolicy": "Always"}}, namespace),
    )
    assert (done, "exceeded quota: notterminating" in said) == (False, True), said
    client.delete(f"/api/v1/namespaces/{namespace}")


def test_servers_without_a_budget(full_plane: ControlPlane) -> None:
    document = deployment("chat", gpu_container(), replicas=2, namespace=NAMESPACE, labels={"app": "chat"})
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "chat"}}}

    _, said = apply(full_plane, document, dry_run=True)
    assert "no PodDisruptionBudget selects them [disruption]" in said

    apply(full_plane, manifest("policy/v1", "PodDisruptionBudget", "chat", budget, namespace=NAMESPACE))
    _, said = apply(full_plane, document, dry_run=True)
    assert "PodDisruptionBudget" not in said
