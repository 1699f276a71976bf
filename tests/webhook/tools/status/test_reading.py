"""The status of a cluster as a caller with few rights reads it: what may not be read is named as `kubectl auth can-i` does."""

from base64 import b64encode
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.issue import issue_ca
from policies.policy import Exemption
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, group, status
from tests.webhook.commands.checked_cluster import GROUP, cluster
from tests.webhook.tools.doctor.objects import LEADS, node
from tests.webhook.tools.installed_clusters import NOW, cluster_of
from webhook.configuration.loader import load_directory
from webhook.tools.doctor.check import CheckResult
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.status import reading
from webhook.tools.status.denials import LoggedPods
from webhook.tools.status.kueue import read_kueue, read_queues
from webhook.tools.status.reading import read_installation, read_status
from webhook.tools.status.report import ClusterStatus, Health, InstallationStatus
from webhook.tools.status.tolerant_reader import TolerantReader

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases"
OPEN: dict[str, Any] = {
    "/version": {"gitVersion": "v1.37.2"},
    "/api/v1/events": [],
    "/api/v1/pods": [],
    f"{GROUP}/gpuquotas": [],
    f"{GROUP}/clustergpuquotas": [],
}


def read(folder: Path, objects: JSON, *namespaces: str, **more: Any) -> ClusterStatus:
    with ApiServer(folder, answering({**cluster(), **OPEN, **objects})) as server:
        return read_status(
            server.client(),
            now=NOW,
            namespaces=namespaces,
            home="ml",
            installation=InstallationStatus(),
            **more,
        )


@cases(
    ("path", "want"),
    policies=(f"{GROUP}/gpupolicies", ("list gpupolicies.gpu-admission.dev",)),
    nodes=("/api/v1/nodes", ("list nodes",)),
    events=("/api/v1/events", ("list events in all namespaces",)),
    teams=(f"{GROUP}/clustergpuquotas", ("list clustergpuquotas.gpu-admission.dev",)),
    the_lease=(
        f"{LEASES}/gpu-admission-controller",
        ("get leases/gpu-admission-controller -n gpu-admission",),
    ),
)
def test_what_may_not_be_read_is_named(tmp_path: Path, path: str, want: tuple[str, ...]) -> None:
    found = read(tmp_path, {path: status(403, "no", "Forbidden")})

    assert found.omitted == want


def test_a_namespace_whose_labels_may_not_be_read_is_named(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({"/api/v1/namespaces/ml": status(403, "no", "Forbidden")})) as server:
        reader = TolerantReader(server.client())

        assert reader.namespace_labels("ml") is None
    assert reader.omitted == ["get namespaces/ml"]


@cases(
    ("path", "read", "want"),
    pools=(
        "/apis/karpenter.sh/v1/nodepools",
        lambda reader: reader.nodes(load_directory(None)),
        ["list nodepools.karpenter.sh"],
    ),
    a_quota=(
        f"{GROUP}/namespaces/ml/gpuquotas/default",
        lambda reader: reader.quota("ml"),
        ["get gpuquotas.gpu-admission.dev -n ml"],
    ),
    limit_ranges=(
        "/api/v1/namespaces/ml/limitranges",
        lambda reader: reader.limit_ranges("ml"),
        ["list limitranges -n ml"],
    ),
)
def test_what_a_command_may_not_read_is_named(
    tmp_path: Path, path: str, read: Callable[[TolerantReader], object], want: list[str]
) -> None:
    served = {
        "/apis/karpenter.sh": group("v1"),
        "/api/v1/nodes": [],
        path: status(403, "no", "Forbidden"),
    }
    with ApiServer(tmp_path, answering(served)) as server:
        reader = TolerantReader(server.client())
        read(reader)

    assert reader.omitted == want


def test_pods_on_gpu_nodes_that_may_not_be_listed_are_named(tmp_path: Path) -> None:
    nodes = {"/api/v1/nodes": [node("a", {"accelerator": "nvidia-t4"})]}
    found = read(tmp_path, {**nodes, "/api/v1/pods": status(403, "no", "Forbidden")})

    assert found.omitted == ("list pods in all namespaces",)


def test_where_denials_are_from(tmp_path: Path) -> None:
    assert read(tmp_path, {}).denials_from == (
        "Events, which the API server keeps for an hour unless --event-ttl says otherwise"
    )
    assert read(tmp_path, {}, logged=LoggedPods((), None)).denials_from == "audit logs"


@cases(
    ("fields", "want"),
    from_every_rule=({}, "legacy: every rule (old)"),
    from_some_for_a_time=(
        {"rules": ("gpu-class", "spot"), "until": date(2027, 2, 1)},
        "legacy: gpu-class, spot until the end of 2027-02-01 (old)",
    ),
)
def test_an_exemption(fields: dict[str, Any], want: str) -> None:
    assert reading._exemption_text(Exemption(namespaces=("legacy",), reason="old", **fields)) == want


KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


def queue(namespace: str, name: str = "main") -> JSON:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": "gpus"}}


def workload(namespace: str, name: str, of_queue: str = "main") -> JSON:
    owner = {"kind": "Job", "name": name, "uid": name}
    metadata = {
        "name": name,
        "uid": f"{namespace}/{name}",
        "namespace": namespace,
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": {"queueName": of_queue}}


def of_namespace(namespace: str, **more: Any) -> dict[str, Any]:
    path = f"{KUEUE}/namespaces/{namespace}" if namespace else KUEUE
    return {
        "/apis/kueue.x-k8s.io": group("v1beta2"),
        f"{path}/localqueues": [queue("ml"), queue("web")] if not namespace else [queue(namespace)],
        f"{path}/workloads": [workload("ml", "a"), workload("ml", "b"), workload("web", "c", "lost")],
        f"{KUEUE}/clusterqueues/gpus": {"metadata": {"name": "gpus"}, "spec": {"stopPolicy": "Hold"}},
        **more,
    }


@cases(
    ("namespaces", "objects", "want"),
    of_all=(
        (),
        of_namespace(""),
        ["ml/main: Job/a: place 1 of 2, Job/b: place 2 of 2", "web/lost: Job/c: place 1 of 1", "web/main: "],
    ),
    of_one=(
        ("ml",),
        of_namespace("ml", **{f"{KUEUE}/namespaces/ml/workloads": [workload("ml", "a")]}),
        ["ml/main: Job/a: place 1 of 1"],
    ),
    where_kueue_is_not_installed=((), {}, []),
)
def test_the_queues_of_kueue(
    tmp_path: Path, namespaces: tuple[str, ...], objects: dict[str, Any], want: list[str]
) -> None:
    quotas: dict[str, Any] = {f"{GROUP}/namespaces/ml/gpuquotas": [], "/api/v1/namespaces/ml/events": []}
    found = read(tmp_path, {**objects, **quotas}, *namespaces)
    shown = [f"{each.namespace}/{each.name}: {', '.join(each.lines(NOW))}" for each in found.queues]

    assert shown == want
    assert all(each.is_stopped for each in found.queues if each.exists)
    assert [each.name for each in found.queues if not each.exists] == ["lost"] * (len(want) > 1)


def test_queues_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    path = f"{KUEUE}/localqueues"
    found = read(tmp_path, of_namespace("", **{path: status(403, "no", "Forbidden")}))

    assert found.omitted == ("list localqueues.kueue.x-k8s.io in all namespaces",)
    assert [each.exists for each in found.queues] == [True, True]


def test_kueue_is_seen_once_it_is_installed(tmp_path: Path) -> None:
    """A console runs for long."""
    objects: dict[str, Any] = {}
    with ApiServer(tmp_path, answering(objects)) as server:
        reader, mapping = TolerantReader(server.client()), load_directory(None).resource_mapping
        assert read_queues(reader, "", mapping) is None
        assert read_kueue(reader, "ml", ["u"], mapping) is None
        assert {each.path for each in server.requests} == {"/apis/kueue.x-k8s.io"}
        objects |= of_namespace("")
        found = read_queues(reader, "", mapping)
    assert found


def test_a_cluster_without_an_installation_has_one_finding(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}) as cluster:
        found = read_installation(cluster)

    assert [finding.id for finding in found.findings] == ["not-installed"]
    assert found.not_checked == ()
    (part,) = found.parts
    assert (part.name, part.health) == ("webhook", Health.FAILED)
    assert part.text == (
        "gpu-admission is not installed in this cluster: no webhook configuration, and no Service in gpu-admission: "
        "no policy and no quota has an effect"
    )


IN_NAMESPACE = "/api/v1/namespaces/gpu-admission"
DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-admission/deployments/gpu-admission-webhook"
CERTIFICATE = issue_ca(common_name="ours", now=NOW, lifetime=timedelta(days=365))
SECRET = {"metadata": {}, "data": {"tls.crt": b64encode(CERTIFICATE.certificate_pem()).decode()}}


def parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, objects: JSON, ready: int = 2
) -> dict[str, tuple[Health, str]]:
    """Return the parts of an installation with two replicas of the webhook, in which no check finds anything."""
    monkeypatch.setattr(reading, "run_checks", lambda _cluster: map(CheckResult, CHECKS))
    spec = {"replicas": 2, "template": {"spec": {"containers": [{"image": "gpu-admission:1"}]}}}
    webhook = {DEPLOYMENT: {"spec": spec, "status": {"readyReplicas": ready}}}
    with cluster_of(folder, {**webhook, **LEADS, **objects}) as cluster:
        return {part.name: (part.health, part.text) for part in read_installation(cluster).parts}


def test_an_installation_in_which_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {f"{IN_NAMESPACE}/secrets/gpu-admission-certificates": SECRET}

    assert parts(tmp_path, monkeypatch, secret) == {
        "webhook": (Health.OK, "2 of 2 replicas ready, gpu-admission:1"),
        "controller": (Health.OK, "a leads"),
        "canary": (Health.OK, "a GPU pod passes both webhooks on a dry run"),
        "certificate": (
            Health.OK,
            "API servers trust what is served; the Secret's is valid until 2028-01-31",
        ),
    }


@cases(
    ("objects", "ready", "part", "want"),
    no_replica=({}, 0, "webhook", (Health.FAILED, "0 of 2 replicas ready, gpu-admission:1")),
    no_deployment=(
        {DEPLOYMENT: None},
        2,
        "webhook",
        (Health.UNKNOWN, "Deployment/gpu-admission-webhook in gpu-admission does not exist"),
    ),
    a_certificate_in_files=({}, 2, "certificate", (Health.OK, "API servers trust what is served")),
)
def test_a_part(
    objects: JSON,
    ready: int,
    part: str,
    want: tuple[Health, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parts(tmp_path, monkeypatch, objects, ready)[part] == want
